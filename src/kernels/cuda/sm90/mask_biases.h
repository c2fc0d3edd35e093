// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "diffattn/kernels/params.h"

/// A copy of an additive mask in the order of the score accumulators, so that a thread reads its
/// biases in 16-byte pieces. Pairs outside the sequence or its causal bounds hold -inf. Heads,
/// batch entries and rows that share a mask (stride 0) share one copy.
namespace diffattn::cuda::sm90 {

/// The copy consists of blocks of [16, columns] biases. The forward has queries as rows and keys as
/// columns; the backward (by_keys) has keys as rows and queries as columns. One warp reads a block:
/// bias 4c + 2r + e of lane l belongs to row l / 4 + 8r and column 8c + 2 (l % 4) + e. Each lane's
/// biases are split into 16-byte pieces, and piece i of all 32 lanes is contiguous.
///
/// Narrow biases keep the 16-bit type of the mask, which is then also the type of q. Other biases
/// are floats multiplied by log2(e).
struct MaskBiases {
  static constexpr int kRows = 16;

  uint4* data = nullptr;  // [B or 1, H or 1, column blocks, row blocks, pieces, 32]
  int64_t batch_stride = 0, head_stride = 0;
  int64_t column_stride = 0, row_stride = 0;  // between blocks, in uint4; 0 if all are equal
  int column_blocks = 0, row_blocks = 0;
  int columns = 0;       // columns of a block
  int block = 0;         // uint4s in a block
  bool by_keys = false;  // rows are keys (backward)
  bool narrow = false;   // 16-bit biases

  /// Plans the copy at `memory`, with the rows padded to a multiple of `padding`. Stays empty
  /// without an additive mask.
  MaskBiases(const Problem& problem, bool by_keys, bool narrow, int padding, int columns,
             void* memory);
  MaskBiases() = default;
  size_t bytes(const Problem& problem) const;
};

/// True if the mask has the type of q.
bool can_be_narrow(const Problem& problem);

/// Launches the kernel that fills `biases`.
void make_biases(const MaskBiases& biases, const Problem& problem, cudaStream_t stream);

}  // namespace diffattn::cuda::sm90
