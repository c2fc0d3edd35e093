// SPDX-License-Identifier: Apache-2.0
//
// A row's softmax once more, for rows whose lse is too large to hold it: under a mask of the lowest
// finite number (what some write for -inf) or of -1e9 all scores of a row are huge and nearly
// equal, and reference + log2(sum), one float, has no digits left for the sum. The kernels still
// compute p = exp2(s - lse): here lse becomes the reference alone, and what p is then too large by
// is divided out of dO and lambda,
//
//   p1 / sum1 (dp - delta1)          = p1 (dp' - delta1')                  dO' = dO / sum1
//   lambda p2 / sum2 (dp - delta2)   = lambda' p2 (dp' - delta2')     lambda' = lambda sum1 / sum2
//
// so that only these rows pay for it.
#pragma once

#include "kernels/cuda/backward/dmask.cuh"
#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/exp2.cuh"

namespace diffattn::cuda {

/// From here on the last place of a lse is more than what a rounding to bf16 would change p by.
inline constexpr float kEnoughDigits = 0x1p15f;

/// Of one map of a row, base 2: lse = reference + log2(sum).
struct RowSoftmax {
  float reference = -INFINITY, sum = 0.0f;

  __device__ void add(float score) {
    const float s = score == -INFINITY ? -FLT_MAX : score;  // overflowed: seen all the same
    const float larger = fmaxf(reference, s);
    sum = sum * ptx::exp2(reference - larger) + ptx::exp2(s - larger);
    reference = larger;
  }

  /// Over the lanes of a warp; every lane gets the same bits.
  __device__ RowSoftmax of_warp() const {
    float largest = reference;
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    }
    const float part = sum == 0.0f ? 0.0f : sum * ptx::exp2(reference - largest);
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

  /// Is one float too little for this lse (natural)?
  __device__ static bool is_needed(const Shape& shape, float lse) {
    return shape.mask.kind == MaskKind::kAdditive && fabsf(lse) > kEnoughDigits &&
           fabsf(lse) < INFINITY;
  }

  /// By a warp, with plain dot products: such rows are padding.
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
