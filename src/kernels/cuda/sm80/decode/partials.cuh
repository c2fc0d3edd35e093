// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/sm80/decode/config.h"

namespace diffattn::cuda::sm80 {

/// Partial softmax states in the workspace: for both maps, one state per row and split of the keys.
struct Partials {
  float* m;  // [2, splits, B, M, H]: row maxima, base 2
  float* l;  // [2, splits, B, M, H]: row sums
  float* o;  // [2, splits, B, M, H, pitch]: sum of p v, not yet divided by l
  int split_keys, splits, batch, seq_q, heads;
  int pitch;  // Dv rounded up to a multiple of 4; the columns from Dv on are 0

  static int64_t pitch_of(int64_t value_dim) { return (value_dim + 3) / 4 * 4; }

  __host__ __device__ int64_t count() const { return int64_t{2} * splits * batch * seq_q * heads; }
  __device__ int64_t slot(int map, int split, int b, int m_row, int h) const {
    return (((int64_t{map} * splits + split) * batch + b) * seq_q + m_row) * heads + h;
  }
};

/// The splits [begin, end) that hold a key which some row of the sequence sees. The kernels neither
/// write nor read the partials of other splits.
struct UsedSplits {
  int begin, end;

  __device__ UsedSplits(const Sequence& seq, int split_keys)
      : begin(max(0, seq.first_visible(0)) / split_keys),
        end((max(0, seq.end_visible(seq.seq_q - 1)) + split_keys - 1) / split_keys) {}
};

}  // namespace diffattn::cuda::sm80
