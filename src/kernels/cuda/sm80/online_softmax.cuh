// SPDX-License-Identifier: Apache-2.0
//
// Online softmax in base 2 over the accumulator fragments of one warp:
//
//   m' = max(m, max_n s),  p = exp2(s - m'),  l = l exp2(m - m') + sum_n p,  o *= exp2(m - m')
//
// with m, l and o in float. To save rescales, m stays as it is (m' = m) unless the maximum of some
// row of the warp exceeds it by more than kSlack.
#pragma once

#include <cmath>

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/quad_reduce.cuh"
#include "kernels/cuda/sm80/tile.cuh"

namespace diffattn::cuda::sm80 {

/// Row maximum m (base 2) and row sum l of one map for the 16 kM rows of a warp. A thread holds
/// rows g and g + 8 of each 16-row fragment, g = lane / 4. m may lag the true maximum by kSlack.
/// Until `finish`, l sums only this thread's columns.
template <int kM>
struct OnlineSoftmax {
  float m[kM][2];
  float l[kM][2];

  __device__ void reset() {
    for (int i = 0; i < kM; ++i) {
      for (int r = 0; r < 2; ++r) m[i][r] = -INFINITY, l[i][r] = 0.0f;
    }
  }

  /// Replaces the scores s by p = exp2(factor s - m) and adds p to l. `factor` > 0 converts scores
  /// to base 2. Without a rescale p <= 2^kSlack, which float and 16-bit types represent with the
  /// same relative precision as p <= 1.
  template <int kN8, int kO8>
  __device__ void update(Accumulator<kM, kN8>& s, float factor, Accumulator<kM, kO8>& o) {
    float m_new[kM][2];
    bool over_slack = false;
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float top = -INFINITY;
#pragma unroll
        for (int j = 0; j < kN8; ++j) top = fmaxf(top, fmaxf(s[i][j][2 * r], s[i][j][2 * r + 1]));
        m_new[i][r] = fmaxf(m[i][r], quad_max(top) * factor);
        over_slack |= m_new[i][r] > m[i][r] + kSlack;
      }
    }
    if (__any_sync(0xffffffffu, over_slack)) rescale(m_new, o);
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float m_finite = finite_or_zero(m[i][r]);
        float sum[2] = {0.0f, 0.0f};  // two independent chains of additions hide their latency
#pragma unroll
        for (int j = 0; j < kN8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[i][j][2 * r + e];
            x = ptx::exp2(x * factor - m_finite);
            sum[e] += x;
          }
        }
        l[i][r] += sum[0] + sum[1];
      }
    }
  }

  /// Sums l over the quad, so that each lane has the whole row's l.
  __device__ void finish() {
    for (int i = 0; i < kM; ++i) {
      for (int r = 0; r < 2; ++r) l[i][r] = quad_sum(l[i][r]);
    }
  }

  /// Returns the row's log-sum-exp (natural logarithm), or -inf for a row that sees no column.
  __device__ float lse(int i, int r) const { return m[i][r] * kLn2 + logf(l[i][r]); }

 private:
  static constexpr float kSlack = 8.0f;

  /// Replaces -inf by 0. A row that has seen no column has m = -inf, and -inf - (-inf) is NaN.
  __device__ static float finite_or_zero(float x) { return x == -INFINITY ? 0.0f : x; }

  template <int kO8>
  __device__ void rescale(const float (&m_new)[kM][2], Accumulator<kM, kO8>& o) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float factor = ptx::exp2(m[i][r] - finite_or_zero(m_new[i][r]));
        m[i][r] = m_new[i][r];
        l[i][r] *= factor;
#pragma unroll
        for (int j = 0; j < kO8; ++j) {
          o[i][j][2 * r] *= factor;
          o[i][j][2 * r + 1] *= factor;
        }
      }
    }
  }
};

}  // namespace diffattn::cuda::sm80
