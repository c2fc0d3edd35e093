// SPDX-License-Identifier: Apache-2.0
//
// The softmax of the wgmma kernels keeps no running maximum: at 64 channels one costs 12 % of the
// time on an H200. A row's exponents are relative to one of its own first scores. P, its sum and O
// carry one common factor, which the division at the end removes, and floating point keeps their
// relative precision. Only when a thread's sum over one tile passes a bound is the reference moved,
// before the tile is multiplied with v or after it. What overflows nevertheless (a score so far
// above its row's reference within one tile that a sum of P reaches 2^126, or P v 2^128) is marked,
// and the tile is computed again by another kernel.
#pragma once

#include <cmath>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/quad.cuh"

namespace diffattn::cuda::sm90 {

/// A P beyond it would be moved. Half precision holds numbers up to 2^16.
template <class T>
inline constexpr float kSumBound = __is_same(T, float16) ? 0x1p15f : 0x1p30f;

/// Is a row's largest score so near to 0, in base 2, that P needs no reference? Half precision
/// holds numbers down to 2^-24.
template <class T>
__device__ __forceinline__ bool near_zero(float top) {
  return __is_same(T, float16) ? top > -2.0f && top < 10.0f : top > -40.0f && top < 20.0f;
}

/// r[i] of row g (i / 2 even) or g + 8 times that row's factor.
template <int kN>
__device__ __forceinline__ void multiply_rows(float (&r)[kN], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) r[i] *= factor[i / 2 % 2];
}

/// One map's state of a thread's rows g and g + 8. A reference is a score before scaling, -inf
/// until the row has seen a column; `sum` is over this thread's columns.
struct RowState {
  float reference[2];
  float sum[2];

  __device__ __forceinline__ void reset() {
    reference[0] = reference[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
  }

  /// References of rows that see the whole first tile: the largest score of columns 0, 1, 8, 9,
  /// 16, 17, 24, 25, which the first lane of a quad holds.
  template <int kN>
  __device__ __forceinline__ void take_first(const float (&s)[kN]) {
    float top[2] = {s[0], s[2]};
#pragma unroll
    for (int i = 0; i < 16; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
    const int first_lane = threadIdx.x % 32 & ~3;
    reference[0] = __shfl_sync(0xffffffffu, top[0], first_lane);
    reference[1] = __shfl_sync(0xffffffffu, top[1], first_lane);
  }

  /// References of rows that see nothing before this tile: their largest score in it.
  template <int kN>
  __device__ __forceinline__ void take_missing(const float (&s)[kN]) {
    const bool missing = fminf(reference[0], reference[1]) == -INFINITY;
    if (!__any_sync(0xffffffffu, missing)) return;
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kN; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float row_top = quad_max(top[r]);
      if (reference[r] == -INFINITY) reference[r] = row_top;
    }
  }

  /// The same under biases, where a row's first scores may lie far below later ones: a reference
  /// that is far from 0 follows the largest score of each tile, and is taken from the scores here,
  /// since its product with c may be rounded by more than 1. `origin` becomes the rest of it, for
  /// `exponentiate`. Returns and sets `factor` as that does. References become 0 where that is good
  /// enough.
  template <class T, int kN>
  __device__ __forceinline__ bool follow_far(float (&s)[kN], float c, float (&factor)[2],
                                             float (&origin)[2]) {
    constexpr float kFar = 64.0f;
    origin[0] = reference[0], origin[1] = reference[1];
    const bool far = fmaxf(fabsf(reference[0]), fabsf(reference[1])) > kFar;
    if (!__any_sync(0xffffffffu, far)) return false;
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kN; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
    float taken[2] = {0.0f, 0.0f};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float row_top = quad_max(top[r]);
      factor[r] = 1.0f;
      if (fabsf(reference[r]) > kFar && row_top > reference[r]) {
        const float next = near_zero<T>(row_top * c) ? 0.0f : row_top;
        factor[r] = ptx::exp2((reference[r] - next) * c);
        sum[r] *= factor[r];
        reference[r] = next;
      }
      if (fabsf(reference[r]) > kFar && reference[r] != -INFINITY) taken[r] = reference[r];
      origin[r] = reference[r] - taken[r];
    }
#pragma unroll
    for (int i = 0; i < kN; ++i) s[i] -= taken[i / 2 % 2];
    return true;
  }

  /// s becomes exp2((s - origin) c), its sums are added; `origin` is the reference, but under
  /// biases. `kMissing`: there may be rows without a reference, whose scores are all -inf. True
  /// when references were moved: then what was summed of P V has to be multiplied by `factor`.
  ///
  /// The products reference c are formed here, not kept: ptxas then runs the multiply-adds row by
  /// row with both constants in the operand cache. With the rows interleaved the register file,
  /// busy feeding wgmma, made the kernel 4 % slower.
  template <class T, bool kMissing, int kN>
  __device__ __forceinline__ bool exponentiate(float (&s)[kN], float c, float (&factor)[2],
                                               const float (&origin)[2]) {
    float tile_sum[2];
    exponentials<kMissing>(s, c, origin, tile_sum);
    return add_sums<T>(s, c, factor, tile_sum);
  }
  template <bool kMissing, int kN>
  __device__ static __forceinline__ void exponentials(float (&s)[kN], float c,
                                                      const float (&origin)[2],
                                                      float (&tile_sum)[2]) {
    float offset[2] = {origin[0] * c, origin[1] * c};
    if constexpr (kMissing) {
      if (origin[0] == -INFINITY) offset[0] = 0.0f;
      if (origin[1] == -INFINITY) offset[1] = 0.0f;
    }
    tile_sum[0] = tile_sum[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      s[i] = ptx::exp2(fmaf(s[i], c, -offset[i / 2 % 2]));
      tile_sum[i / 2 % 2] += s[i];
    }
  }

  /// Are all of the warp's references 0?
  __device__ __forceinline__ bool has_no_references() const {
    return !__any_sync(0xffffffffu, reference[0] != 0.0f || reference[1] != 0.0f);
  }

  /// `exponentiate` where there are none: s becomes exp2(s scale + biases), which are in base 2.
  template <class T, class Biases, int kN>
  __device__ __forceinline__ bool exponentiate_biased(float (&s)[kN], Biases& biases, float scale,
                                                      float (&factor)[2]) {
    biases.add_to(s, scale);
    float tile_sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      s[i] = ptx::exp2(s[i]);
      tile_sum[i / 2 % 2] += s[i];
    }
    return add_sums<T>(s, 1.0f, factor, tile_sum);
  }

  /// The end of `exponentiate`.
  template <class T, int kN>
  __device__ __forceinline__ bool add_sums(float (&s)[kN], float c, float (&factor)[2],
                                           const float (&tile_sum)[2]) {
    sum[0] += tile_sum[0];
    sum[1] += tile_sum[1];
    const bool far = !(fmaxf(tile_sum[0], tile_sum[1]) < kSumBound<T>);
    if (!__any_sync(0xffffffffu, far)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) factor[r] = move(r, c, quad_sum(tile_sum[r]));
    multiply_rows(s, factor);
    return true;
  }

  /// Moves row r's reference by a whole power of 2, `size` rounded down, and returns what this
  /// multiplies its sums by. Overflow becomes NaN for good.
  __device__ __forceinline__ float move(int r, float c, float size) {
    const int bits = __float_as_int(fmaxf(size, 1.0f));
    const int exponent = (bits >> 23) - 127;
    const float factor = exponent < 127 ? __int_as_float((127 - exponent) << 23) : NAN;
    if (exponent > 0) reference[r] += __fdividef(static_cast<float>(exponent), c);
    sum[r] *= factor;
    return factor;
  }

  /// Has one of this thread's sums passed the bound?
  template <class T>
  __device__ __forceinline__ bool is_far() const {
    return !(fmaxf(sum[0], sum[1]) < kSumBound<T>);
  }
  /// Moves the references of rows for which a thread says so, and no others.
  template <class T>
  __device__ __forceinline__ void move_far(float c, float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float top = quad_max(sum[r]), size = quad_sum(sum[r]);
      factor[r] = move(r, c, top < kSumBound<T> ? 1.0f : size);
    }
  }

  template <class T, bool kMissing, int kN>
  __device__ __forceinline__ bool exponentiate(float (&s)[kN], float c, float (&factor)[2]) {
    return exponentiate<T, kMissing>(s, c, factor, reference);
  }

  /// Once per item. `c`: as above.
  __device__ __forceinline__ float lse(int r, float c) const {
    constexpr float kLn2 = 0.6931471805599453f;
    return sum[r] == 0.0f ? -INFINITY : reference[r] * c * kLn2 + __logf(sum[r]);
  }
};

/// P in the layout of a register operand, rounded to T.
template <class T, int kN>
__device__ __forceinline__ void round_rows(uint32_t (&p)[kN / 2], const float (&s)[kN]) {
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) p[i] = pack<T>(s[2 * i], s[2 * i + 1]);
}

}  // namespace diffattn::cuda::sm90
