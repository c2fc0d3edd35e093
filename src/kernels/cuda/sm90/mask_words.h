// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "diffattn/kernels/params.h"

/// A boolean mask as one bit per entry, in the order in which the kernels ask for it, the bounds of
/// the sequence included. Heads and batch entries that share a mask share the words.
namespace diffattn::cuda::sm90 {

/// Is this a mask tensor that the kernels take? Over whole sequences, at D = 64 and Dv = 128; not
/// an additive one that is the same for all rows under causal bounds, which would have to be
/// written out.
bool takes_mask(const Problem& problem, int64_t value_dim);

/// For each tile of keys and each row up to four words of 32 keys.
struct RowWords {
  uint4* data = nullptr;  // [B or 1, H or 1, tiles, rows]
  int64_t batch_stride = 0, head_stride = 0;
  int rows = 0;

  /// Rows up to a multiple of `whole`; `keys` of a tile. Empty without a boolean mask.
  RowWords(const Problem& problem, int whole, int keys, void* memory);
  RowWords() = default;
  size_t bytes(const Problem& problem, int keys) const;
};

/// For each 64 rows and each key two words of 32 rows.
struct KeyWords {
  uint2* data = nullptr;  // [B or 1, H or 1, units, keys]
  int64_t batch_stride = 0, head_stride = 0;
  int keys = 0;

  /// Keys up to a multiple of `whole`. Empty without a boolean mask.
  KeyWords(const Problem& problem, int whole, void* memory);
  KeyWords() = default;
  size_t bytes(const Problem& problem) const;
};

void make_words(const RowWords& words, int keys, const Problem& problem, cudaStream_t stream);
void make_words(const KeyWords& words, const Problem& problem, cudaStream_t stream);

}  // namespace diffattn::cuda::sm90
