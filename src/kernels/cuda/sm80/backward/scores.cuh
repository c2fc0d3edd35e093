// SPDX-License-Identifier: Apache-2.0
//
// What a warp does with its tile of scores between the products of the backward:
//
//   p = exp2(scale log2(e) s + mask - lse)
//   p1 - lambda p2,  ds1 = p1 (dp - delta1),  ds2 = -lambda p2 (dp - delta2)     to shared memory
//
// `stats(which, i, r)` gives lse1, lse2, delta1, delta2 or lambda (0 to 4) of this thread's row
// 16 i + 8 r + lane / 4; `share(which, i, r, words)` takes what this thread has of that row, two
// neighbours a word and 8 columns from word to word: ds1, ds2 (0, 1), p1 - lambda p2 (2).
#pragma once

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/sm80/visible_words.cuh"

namespace diffattn::cuda::sm80 {

using ScoreTile = Accumulator<2, 4>;  // of a warp: [32 queries, 32 keys]

template <class Stats>
__device__ inline void subtract_lse(ScoreTile& s, float factor, int map, const Stats& stats) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float reference = stats(map, i, r);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) s[i][j][e] = s[i][j][e] * factor - reference;
      }
    }
  }
}

/// -inf where a row may not see, which replaces a NaN. word: of the row of this lane's number.
__device__ inline void hide_unseen(ScoreTile& s, uint32_t word) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = i * 16 + r * 8 + static_cast<int>(threadIdx.x) % kWarpSize / 4;
      hide_unseen(s[i], r, __shfl_sync(0xffffffffu, word, row));
    }
  }
}

/// None is above 1: where scores are so large that lse rounds to less than one of them, the bound
/// keeps p from exploding.
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

/// Shares p1 - lambda p2, and leaves lambda p2 in p2.
template <class T, class Stats, class Share>
__device__ inline void share_difference(const ScoreTile& p1, ScoreTile& p2, const Stats& stats,
                                        const Share& share) {
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
      share(2, i, r, words);
    }
  }
}

/// p2 is lambda p2.
template <class T, bool kMasked, class Stats, class Share>
__device__ inline void share_gradients(const ScoreTile& p1, const ScoreTile& p2,
                                       const ScoreTile& dp, const Stats& stats,
                                       const Share& share) {
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
          // Selected, not multiplied: what a row may not see can be NaN.
          if (kMasked && p1[i][j][at] == 0.0f) x[e] = 0.0f;
          if (kMasked && p2[i][j][at] == 0.0f) y[e] = 0.0f;
        }
        words1[j] = pack<T>(x[0], x[1]), words2[j] = pack<T>(y[0], y[1]);
      }
      share(0, i, r, words1);
      share(1, i, r, words2);
    }
  }
}

}  // namespace diffattn::cuda::sm80
