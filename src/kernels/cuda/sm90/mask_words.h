// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "diffattn/kernels/params.h"

/// A copy of a boolean mask with one bit per (query, key) pair, in the order in which the kernels
/// read it. A bit is 1 if the query may see the key, causal bounds included. Heads and batch
/// entries that share a mask (stride 0) share one copy.
namespace diffattn::cuda::sm90 {

/// True if the Hopper kernels take this boolean or additive mask tensor. They require D = 64 and
/// Dv = 128, and a mask tensor excludes window, key_starts, key_lengths and packed sequences. They
/// refuse a causal problem whose additive mask is the same for all rows: the copy holds the causal
/// bounds as -inf, so it would need one row per query. Batch and heads are at most 65535 each.
bool takes_mask(const Problem& problem, int64_t value_dim);

/// The forward's copy: up to four words of 32 keys for each key tile and query row.
struct RowWords {
  uint4* data = nullptr;  // [B or 1, H or 1, tiles, rows]
  int64_t batch_stride = 0, head_stride = 0;
  int rows = 0;  // M, padded

  /// Plans the copy at `memory` for tiles of `keys` keys, with M padded to a multiple of
  /// `padding`. Stays empty without a boolean mask.
  RowWords(const Problem& problem, int padding, int keys, void* memory);
  RowWords() = default;
  size_t bytes(const Problem& problem, int keys) const;
};

/// The backward's copy: two words of 32 query rows for each unit of 64 rows and each key.
struct KeyWords {
  uint2* data = nullptr;  // [B or 1, H or 1, units, keys]
  int64_t batch_stride = 0, head_stride = 0;
  int keys = 0;  // N, padded

  /// Plans the copy at `memory`, with N padded to a multiple of `padding`. Stays empty without a
  /// boolean mask.
  KeyWords(const Problem& problem, int padding, void* memory);
  KeyWords() = default;
  size_t bytes(const Problem& problem) const;
};

/// Launches the kernel that fills `words`; `keys` is the number of keys in a tile.
void make_words(const RowWords& words, int keys, const Problem& problem, cudaStream_t stream);
void make_words(const KeyWords& words, const Problem& problem, cudaStream_t stream);

}  // namespace diffattn::cuda::sm90
