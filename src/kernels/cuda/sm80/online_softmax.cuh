// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/quad.cuh"
#include "kernels/cuda/sm80/tile.cuh"

namespace diffattn::cuda::sm80 {

/// The row state (m, l) of one map in base 2, for the rows of one warp's accumulator: a thread
/// keeps rows g and g + 8 of every 16. m is a maximum up to kSlack; l is the thread's own part
/// until `finish`.
template <int kM>
struct OnlineSoftmax {
  float m[kM][2];
  float l[kM][2];

  __device__ void reset() {
    for (int i = 0; i < kM; ++i) {
      for (int r = 0; r < 2; ++r) m[i][r] = -INFINITY, l[i][r] = 0.0f;
    }
  }

  /// s: scores, base 2 once multiplied by `factor` > 0 -> exp2(factor s - m) in place. o and l are
  /// rescaled only when some row of the warp has outgrown its m by kSlack: until then p stays below
  /// 2^kSlack, which float sums and 16-bit operands hold as exactly as p below 1.
  template <int kN8, int kO8>
  __device__ void update(Accumulator<kM, kN8>& s, float factor, Accumulator<kM, kO8>& o) {
    float m_new[kM][2];
    bool outgrown = false;
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float top = -INFINITY;
#pragma unroll
        for (int j = 0; j < kN8; ++j) top = fmaxf(top, fmaxf(s[i][j][2 * r], s[i][j][2 * r + 1]));
        m_new[i][r] = fmaxf(m[i][r], quad_max(top) * factor);
        outgrown |= m_new[i][r] > m[i][r] + kSlack;
      }
    }
    if (__any_sync(0xffffffffu, outgrown)) rescale(m_new, o);
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float reference = finite_or_zero(m[i][r]);
        float sum[2] = {0.0f, 0.0f};  // two chains of additions
#pragma unroll
        for (int j = 0; j < kN8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[i][j][2 * r + e];
            x = ptx::exp2(x * factor - reference);
            sum[e] += x;
          }
        }
        l[i][r] += sum[0] + sum[1];
      }
    }
  }

  /// Completes l over the quad.
  __device__ void finish() {
    for (int i = 0; i < kM; ++i) {
      for (int r = 0; r < 2; ++r) l[i][r] = quad_sum(l[i][r]);
    }
  }

  /// log sum exp of a row, natural; -inf for a row that sees nothing.
  __device__ float lse(int i, int r) const { return m[i][r] * kLn2 + logf(l[i][r]); }

 private:
  static constexpr float kSlack = 8.0f;

  /// While a row has seen nothing its maximum is -inf: -inf - (-inf) would be NaN.
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
