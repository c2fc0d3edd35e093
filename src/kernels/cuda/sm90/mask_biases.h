// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "diffattn/kernels/params.h"

/// An additive mask in the order in which the kernels' accumulators hold scores, the bounds of the
/// sequence included as -inf. Heads, batch entries and rows that share a mask share the numbers.
namespace diffattn::cuda::sm90 {

/// Blocks of 16 x `columns` numbers: rows by keys in the forward, keys by rows in the backward.
/// Lane l of a warp has of a block the rows l / 4 and l / 4 + 8 and of these the columns 8c + 2 (l
/// % 4) + {0, 1}: number 4c + 2r + e of its own. They lie in pieces of 16 bytes, those of the
/// warp's lanes side by side.
///
/// Narrow numbers are those of the mask, which is of q's type; others are floats, in base 2.
struct MaskBiases {
  static constexpr int kRows = 16;

  uint4* data = nullptr;  // [B or 1, H or 1, column blocks, row blocks, pieces, 32]
  int64_t batch_stride = 0, head_stride = 0;
  int64_t column_stride = 0, row_stride = 0;  // from one block to the next; 0 where they are equal
  int column_blocks = 0, row_blocks = 0;
  int columns = 0;       // of a block
  int block = 0;         // uint4s of a block
  bool by_keys = false;  // the backward's
  bool narrow = false;

  /// Rows of blocks up to a multiple of `whole`. Empty without an additive mask.
  MaskBiases(const Problem& problem, bool by_keys, bool narrow, int whole, int columns,
             void* memory);
  MaskBiases() = default;
  size_t bytes(const Problem& problem) const;
};

/// Is the mask of q's type?
bool can_be_narrow(const Problem& problem);

void make_biases(const MaskBiases& biases, const Problem& problem, cudaStream_t stream);

}  // namespace diffattn::cuda::sm90
