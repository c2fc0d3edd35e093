// SPDX-License-Identifier: Apache-2.0
//
// Recomputes the softmax of a row whose lse is too large for one float. An additive mask may hide
// every column of a row with a huge finite number (-FLT_MAX, -1e9). Then all scores are huge and
// nearly equal, and lse = max + log2(sum) has no digits left for the sum. The other kernels compute
// p = exp2(s - lse). For such a row we give them the row maximum as lse. Their p is then too large
// by the factor `sum`, which we divide out of dO and lambda:
//
//   p1 / sum1 (dp - delta1)          = p1 (dp' - delta1')                  dO' = dO / sum1
//   lambda p2 / sum2 (dp - delta2)   = lambda' p2 (dp' - delta2')     lambda' = lambda sum1 / sum2
//
// One warp per row; only these rows pay for it.
#pragma once

#include "kernels/cuda/backward/dmask.cuh"
#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/exp2.cuh"

namespace diffattn::cuda {

/// |lse| (natural logarithm) above which one ulp of lse, at least 2^-8, changes p by more than
/// rounding p to bfloat16 does.
inline constexpr float kEnoughDigits = 0x1p15f;

/// Row maximum (`row_max`) and sum of one map in base 2: lse = row_max + log2(sum).
struct RowSoftmax {
  float row_max = -INFINITY, sum = 0.0f;

  __device__ void add(float score) {
    const float s = score == -INFINITY ? -FLT_MAX : score;  // overflowed, but still visible
    const float larger = fmaxf(row_max, s);
    sum = sum * ptx::exp2(row_max - larger) + ptx::exp2(s - larger);
    row_max = larger;
  }

  /// Merges the lanes of a warp; every lane gets the same bits.
  __device__ RowSoftmax of_warp() const {
    float largest = row_max;
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    }
    const float part = sum == 0.0f ? 0.0f : sum * ptx::exp2(row_max - largest);
    return {largest, warp_sum(part)};
  }
};

struct RowSoftmaxes {
  RowSoftmax map1, map2;
};

template <class T>
struct MaskedScores {
  Rows<const T> q1, q2, k1, k2;  // [B, M, H, D], [B, N, Hkv, D]
  float scale_log2, scale2_log2;

  /// True if one float cannot hold this lse (natural logarithm) precisely enough.
  __device__ static bool is_needed(const Shape& shape, float lse) {
    return shape.mask.kind == MaskKind::kAdditive && fabsf(lse) > kEnoughDigits &&
           fabsf(lse) < INFINITY;
  }

  /// Computes both maps' softmax of a row with the calling warp. Uses plain dot products, because
  /// such rows are rare (padding).
  __device__ __noinline__ RowSoftmaxes softmax(const Shape& shape, int b, int m, int h) const {
    const Sequence seq = shape.sequence(b);
    const HeadMask mask(shape, seq, b, h);
    const int64_t row = seq.q_begin + m;
    const int g = shape.kv_head(h);
    RowSoftmax part1, part2;
    const int end = seq.end_visible(m);
    for (int n = max(0, seq.first_visible(m)) + threadIdx.x % kWarpSize; n < end; n += kWarpSize) {
      const float bias = mask.bias(m, n);
      if (bias == -INFINITY) continue;
      const int64_t column = seq.k_begin + n;
      const float s1 = dot(q1.at(b, row, h), k1.at(b, column, g), shape.head_dim);
      const float s2 = dot(q2.at(b, row, h), k2.at(b, column, g), shape.head_dim);
      part1.add(s1 * scale_log2 + bias);
      part2.add(s2 * scale2_log2 + bias);
    }
    __syncwarp();
    return {part1.of_warp(), part2.of_warp()};
  }
};

}  // namespace diffattn::cuda
