// SPDX-License-Identifier: Apache-2.0
//
// The fp32 micro-kernel: an R x W tile of accumulators (W = two vectors) that stays in registers
// along the summed dimension:
//
//   c[i][j] += sum_k a[i, k] * b[k, j]
//
// One step broadcasts R elements of a and loads two vectors of b for 2 R FMAs. Two load ports need
// (R + 2) / 2 clocks for this, while two FMA ports need R clocks. a may have any layout, because
// broadcasts read single elements; its strides are template parameters, so that addresses are
// immediate offsets. The same copy of p or ds therefore also serves as its transpose.
#pragma once

#include <cstdint>

#define DIFFATTN_INLINE inline __attribute__((always_inline))

namespace diffattn::cpu {

template <class Isa>
struct FmaTile {
  using Vec = typename Isa::Vec;
  static constexpr int kRows = Isa::kRows;
  static constexpr int kLanes = Isa::kLanes;
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
  /// A product between begin_sum and end_sum adds to the sums at p. The tile starts from zero, so
  /// a long sum consists of short ones, and its rounding error grows with their number only.
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
  /// Returns half h of row i.
  DIFFATTN_INLINE Vec row(int i, int h) const { return c[i][h]; }

  /// Adds a b, with a[i, k] at a[k * R + i] as Pack::strip writes it. Prefetches one cache line per
  /// step from `next`, W operands apart: the part of b that comes next. Any address is allowed.
  DIFFATTN_INLINE void multiply_packed(const float* a, const float* b, int64_t steps,
                                       const float* next) {
    multiply<1, kRows, true>(a, b, Isa::kCols, steps, next);
  }
  /// Adds a b, with a[i, k] at a[i * Stride + k].
  template <int Stride>
  DIFFATTN_INLINE void multiply_rows(const float* a, const float* b, int64_t steps,
                                     const float* next) {
    multiply<Stride, 1, true>(a, b, Isa::kCols, steps, next);
  }
  /// Adds a b, with a[i, k] at a[k * Stride + i].
  template <int Stride>
  DIFFATTN_INLINE void multiply_columns(const float* a, const float* b, int64_t b_stride,
                                        int64_t steps) {
    multiply<1, Stride, false>(a, b, b_stride, steps, nullptr);
  }

 private:
  template <int RowStride, int StepStride, bool kAsk>
  DIFFATTN_INLINE void multiply(const float* a, const float* b, int64_t b_stride, int64_t steps,
                                const float* next) {
    for (int64_t k = 0; k < steps; ++k, a += StepStride, b += b_stride) {
      if constexpr (kAsk) __builtin_prefetch(next + k * Isa::kCols);
      const Vec b0 = Isa::load(b), b1 = Isa::load(b + kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        const Vec x = Isa::set1(a[i * RowStride]);
        c[i][0] = Isa::fma(x, b0, c[i][0]);
        c[i][1] = Isa::fma(x, b1, c[i][1]);
      }
    }
  }
};

}  // namespace diffattn::cpu
