// SPDX-License-Identifier: Apache-2.0
//
// Elementwise steps of the fused backward on one warp's tile of scores:
//
//   p = exp2(scale log2(e) s + mask - lse)
//   a = p1 - lambda p2,  ds1 = p1 (dp - delta1),  ds2 = -lambda p2 (dp - delta2)
//
// The functions take two callbacks, both for this thread's row 16 i + 8 r + lane / 4:
//   stats(which, i, r)             returns lse1, lse2, delta1, delta2 or lambda (which = 0 to 4)
//   store_row(which, i, r, words)  stores ds1, ds2 or a (which = 0 to 2) to shared memory as T;
//                                  word j holds columns 8 j + 2 (lane % 4) and the next one
#pragma once

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/sm80/visible_words.cuh"

namespace diffattn::cuda::sm80 {

using ScoreTile = Accumulator<2, 4>;  // one warp's [32 queries, 32 keys]

/// s = factor s - lse of `map`, in base 2.
template <class Stats>
__device__ inline void subtract_lse(ScoreTile& s, float factor, int map, const Stats& stats) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float lse = stats(map, i, r);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) s[i][j][e] = s[i][j][e] * factor - lse;
      }
    }
  }
}

/// Sets hidden scores to -inf, even if they are NaN. `word` is the visibility word of the tile's
/// row number `lane`.
__device__ inline void mask_unseen(ScoreTile& s, uint32_t word) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = i * 16 + r * 8 + static_cast<int>(threadIdx.x) % kWarpSize / 4;
      mask_unseen(s[i], r, __shfl_sync(0xffffffffu, word, row));
    }
  }
}

/// s = min(exp2(s), 1). Huge scores can exceed their rounded lse; the bound keeps p from exploding.
__device__ inline void to_probabilities(ScoreTile& s) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[i][j][e] = ptx::probability(s[i][j][e]);
    }
  }
}

/// Stores a = p1 - lambda p2 through `store_row` and replaces p2 by lambda p2.
template <class T, class Stats, class StoreRow>
__device__ inline void store_difference(const ScoreTile& p1, ScoreTile& p2, const Stats& stats,
                                        const StoreRow& store_row) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float lambda = stats(4, i, r);
      uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const x = p1[i][j] + 2 * r;
        float* const y = p2[i][j] + 2 * r;
        y[0] *= lambda, y[1] *= lambda;
        words[j] = pack<T>(x[0] - y[0], x[1] - y[1]);
      }
      store_row(2, i, r, words);
    }
  }
}

/// Stores ds1 and ds2 through `store_row`. p2 holds lambda p2 here.
template <class T, bool kMasked, class Stats, class StoreRow>
__device__ inline void store_gradients(const ScoreTile& p1, const ScoreTile& p2,
                                       const ScoreTile& dp, const Stats& stats,
                                       const StoreRow& store_row) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float delta1 = stats(2, i, r), delta2 = stats(3, i, r);
      uint32_t words1[4], words2[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float x[2], y[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = 2 * r + e;
          x[e] = p1[i][j][at] * (dp[i][j][at] - delta1);
          y[e] = p2[i][j][at] * (delta2 - dp[i][j][at]);
          // A hidden column may have dp = NaN, and 0 * NaN is NaN.
          if (kMasked && p1[i][j][at] == 0.0f) x[e] = 0.0f;
          if (kMasked && p2[i][j][at] == 0.0f) y[e] = 0.0f;
        }
        words1[j] = pack<T>(x[0], x[1]), words2[j] = pack<T>(y[0], y[1]);
      }
      store_row(0, i, r, words1);
      store_row(1, i, r, words2);
    }
  }
}

}  // namespace diffattn::cuda::sm80
