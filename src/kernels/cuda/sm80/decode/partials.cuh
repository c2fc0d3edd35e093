// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/sm80/decode/config.h"

namespace diffattn::cuda::sm80 {

/// What the blocks over parts of the keys leave in the workspace: the softmax state of each row of
/// both maps, base 2, o not yet divided by l.
struct Partials {
  float* m;  // [2, splits, B, M, H]
  float* l;  // [2, splits, B, M, H]
  float* o;  // [2, splits, B, M, H, pitch]: Dv, and zeros up to a multiple of 4
  int split_keys, splits, batch, seq_q, heads;
  int pitch;

  static int64_t pitch_of(int64_t value_dim) { return (value_dim + 3) / 4 * 4; }

  __host__ __device__ int64_t count() const { return int64_t{2} * splits * batch * seq_q * heads; }
  __device__ int64_t slot(int map, int split, int b, int m_row, int h) const {
    return (((int64_t{map} * splits + split) * batch + b) * seq_q + m_row) * heads + h;
  }
};

/// The parts of the keys that any row of the sequence sees: [begin, end). Others are neither
/// written nor read.
struct UsedSplits {
  int begin, end;

  __device__ UsedSplits(const Sequence& seq, int split_keys)
      : begin(max(0, seq.first_visible(0)) / split_keys),
        end((max(0, seq.end_visible(seq.seq_q - 1)) + split_keys - 1) / split_keys) {}
};

}  // namespace diffattn::cuda::sm80
