// SPDX-License-Identifier: Apache-2.0
//
// The micro-kernel of FmaTile for operands of two bf16:
//
//   c[i][j] += sum_k a[i, k] * b[k, j]       R x W fp32 sums in registers
//
// One step broadcasts R operands of a, loads two vectors of b, and sums two elements of the inner
// dimension with vdpbf16ps.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/fma_tile.h"

namespace diffattn::cpu {

/// Has the members of FmaTile.
template <class Isa>
struct DotTile {
  using Vec = __m512;
  static constexpr int kRows = Isa::kRows, kLanes = Isa::kLanes, kCols = Isa::kCols;
  Vec c[kRows][2];

  DIFFATTN_INLINE void zero() {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) c[i][0] = c[i][1] = Isa::zero();
  }
  DIFFATTN_INLINE void store(float* p, int64_t stride) const {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      Isa::store(p + i * stride, c[i][0]);
      Isa::store(p + i * stride + kLanes, c[i][1]);
    }
  }
  DIFFATTN_INLINE void begin_sum(const float*, int64_t) { zero(); }
  DIFFATTN_INLINE void end_sum(float* p, int64_t stride) const {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      for (int h = 0; h < 2; ++h) {
        float* out = p + i * stride + h * kLanes;
        Isa::store(out, Isa::add(Isa::load(out), c[i][h]));
      }
    }
  }
  DIFFATTN_INLINE Vec row(int i, int h) const { return c[i][h]; }

  DIFFATTN_INLINE void multiply_packed(const uint32_t* a, const uint32_t* b, int64_t steps,
                                       const uint32_t* next) {
    multiply<1, kRows, true>(a, b, kCols, steps, next);
  }
  template <int Stride>
  DIFFATTN_INLINE void multiply_rows(const uint32_t* a, const uint32_t* b, int64_t steps,
                                     const uint32_t* next) {
    multiply<Stride, 1, true>(a, b, kCols, steps, next);
  }
  template <int Stride>
  DIFFATTN_INLINE void multiply_columns(const uint32_t* a, const uint32_t* b, int64_t b_stride,
                                        int64_t steps) {
    multiply<1, Stride, false>(a, b, b_stride, steps, nullptr);
  }

 private:
  template <int RowStride, int StepStride, bool kAsk>
  DIFFATTN_INLINE void multiply(const uint32_t* a, const uint32_t* b, int64_t b_stride,
                                int64_t steps, const uint32_t* next) {
    for (int64_t k = 0; k < steps; ++k, a += StepStride, b += b_stride) {
      if constexpr (kAsk) __builtin_prefetch(next + k * kCols);
      const __m512bh b0 = (__m512bh)_mm512_loadu_si512(b);
      const __m512bh b1 = (__m512bh)_mm512_loadu_si512(b + kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const __m512bh x = (__m512bh)_mm512_set1_epi32(static_cast<int>(a[i * RowStride]));
        c[i][0] = _mm512_dpbf16_ps(c[i][0], x, b0);
        c[i][1] = _mm512_dpbf16_ps(c[i][1], x, b1);
      }
    }
  }
};

}  // namespace diffattn::cpu
