// SPDX-License-Identifier: Apache-2.0
//
// Which keys a block of the main kernel owns, and which units of query rows see any of them.
#pragma once

#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/sm90/backward/config.h"

namespace diffattn::cuda::sm90 {

/// Pieces of `rows` rows of all sequences, numbered so that the numbers of a sequence's pieces
/// follow from its offset alone. Packed sequences leave at most one number each unused.
struct Pieces {
  const int32_t* cu_seqlens;  // [B + 1] or null
  int rows;
  int per_sequence;  // not packed

  __device__ int first(int b) const {
    return cu_seqlens == nullptr ? b * per_sequence : cu_seqlens[b] / rows + b;
  }
  /// The sequence that piece number i belongs to, the same for all lanes of a warp.
  __device__ int sequence(int i, int batch) const {
    if (cu_seqlens == nullptr) return i / per_sequence;
    int before = 0;  // sequences that begin at or before it
    for (int b = threadIdx.x % 32; b < batch; b += 32) before += first(b) <= i;
    return __reduce_add_sync(0xffffffffu, before) - 1;
  }
};

inline Pieces pieces_of(const int32_t* cu_seqlens, int64_t seq, int64_t rows) {
  return {cu_seqlens, static_cast<int>(rows), static_cast<int>((seq + rows - 1) / rows)};
}

/// How many numbers there are.
inline int64_t piece_count(const int32_t* cu_seqlens, int64_t batch, int64_t seq, int64_t total,
                           int64_t rows) {
  return cu_seqlens == nullptr ? batch * ((seq + rows - 1) / rows) : total / rows + batch;
}

/// Units [begin, end) of a head hold the rows that see keys [n0, n0 + keys).
struct UnitRange {
  int begin = 0, end = 0;
};

__device__ inline UnitRange units_that_see(const Sequence& seq, int n0, int keys) {
  const int first = max(n0, seq.first_key), last = min(n0 + keys, seq.end_key) - 1;
  if (first > last) return {};
  const int begin = seq.first_row(first) / kUnitRows;
  return {begin, max(begin, (seq.end_row(last) + kUnitRows - 1) / kUnitRows)};
}

/// Units [begin, end) in which every row sees every one of the keys; rows past the last count as
/// seeing, their statistics make them harmless.
__device__ inline UnitRange units_that_see_all(const Sequence& seq, int n0, int keys) {
  constexpr int kEnd = 1 << 30;
  if (n0 < seq.first_key || n0 + keys > seq.end_key) return {kEnd, kEnd};
  const int begin = (seq.first_row(n0 + keys - 1) + kUnitRows - 1) / kUnitRows;
  return {begin,
          seq.window == kFarAway ? kEnd : max(0, n0 - seq.diagonal + seq.window) / kUnitRows};
}

}  // namespace diffattn::cuda::sm90
