// SPDX-License-Identifier: Apache-2.0
//
// Numbers the key tiles and query units of all sequences, and computes which units see a key tile.
#pragma once

#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/sm90/backward/config.h"

namespace diffattn::cuda::sm90 {

/// Numbers the tiles of `rows` rows (key tiles or query units) of all sequences, so that a
/// sequence's first number follows from its offset. Each packed sequence leaves at most one number
/// unused.
struct TileNumbers {
  const int32_t* cu_seqlens;  // [B + 1] or null
  int rows;
  int per_sequence;  // tiles of a sequence, if not packed

  /// Returns the number of the first tile of sequence b.
  __device__ int first(int b) const {
    return cu_seqlens == nullptr ? b * per_sequence : cu_seqlens[b] / rows + b;
  }
  /// Returns the sequence that tile number i belongs to, uniform in a warp.
  __device__ int sequence(int i, int batch) const {
    if (cu_seqlens == nullptr) return i / per_sequence;
    int started = 0;  // sequences whose first tile is at or before i
    for (int b = threadIdx.x % 32; b < batch; b += 32) started += first(b) <= i;
    return __reduce_add_sync(0xffffffffu, started) - 1;
  }
};

inline TileNumbers tile_numbers(const int32_t* cu_seqlens, int64_t seq, int64_t rows) {
  return {cu_seqlens, static_cast<int>(rows), static_cast<int>((seq + rows - 1) / rows)};
}

/// Returns how many tile numbers there are, unused ones included.
inline int64_t tile_number_count(const int32_t* cu_seqlens, int64_t batch, int64_t seq,
                                 int64_t total, int64_t rows) {
  return cu_seqlens == nullptr ? batch * ((seq + rows - 1) / rows) : total / rows + batch;
}

/// Units [begin, end) of a head.
struct UnitRange {
  int begin = 0, end = 0;
};

/// Returns the units that hold a row which sees any of the keys [n0, n0 + keys).
__device__ inline UnitRange units_that_see(const Sequence& seq, int n0, int keys) {
  const int first = max(n0, seq.first_key), last = min(n0 + keys, seq.end_key) - 1;
  if (first > last) return {};
  const int begin = seq.first_row(first) / kUnitRows;
  return {begin, max(begin, (seq.end_row(last) + kUnitRows - 1) / kUnitRows)};
}

/// Returns the units in which every row sees all of the keys. Rows past the end of the sequence
/// count as seeing them: their statistics make p = 0.
__device__ inline UnitRange units_that_see_all(const Sequence& seq, int n0, int keys) {
  constexpr int kEnd = 1 << 30;
  if (n0 < seq.first_key || n0 + keys > seq.end_key) return {kEnd, kEnd};
  const int begin = (seq.first_row(n0 + keys - 1) + kUnitRows - 1) / kUnitRows;
  return {begin,
          seq.window == kFarAway ? kEnd : max(0, n0 - seq.diagonal + seq.window) / kUnitRows};
}

}  // namespace diffattn::cuda::sm90
