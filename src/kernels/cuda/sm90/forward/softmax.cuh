// SPDX-License-Identifier: Apache-2.0
//
// Softmax without a running row maximum, which would cost 12 % of the time at D = 64 on an H200.
// Each row subtracts an approximate maximum, `approx_max`, taken from its first visible scores. P,
// its sum and O then share a common factor, which the final division removes. Such a factor does
// not change the relative precision of floating-point numbers.
//
// The approximate maximum rises only when a thread's sum exceeds kSumBound; additive masks are an
// exception (`track_large_max`). `exponentiate` tests the sum of a tile and rescales P, the sums
// and O before the tile's product with v. With late rescaling (kLateRescale in kernel.cuh),
// `rescale_large_sums` tests the sum so far and rescales after that product. One tile alone may
// still overflow, if a sum of P reaches 2^126 or P v reaches 2^128. finish.cuh then marks the rows,
// and the repair kernel recomputes them.
#pragma once

#include <cmath>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/quad_reduce.cuh"

namespace diffattn::cuda::sm90 {

/// Largest sum over a thread's columns before we rescale P. float16 overflows at 2^16.
template <class T>
inline constexpr float kSumBound = __is_same(T, float16) ? 0x1p15f : 0x1p30f;

/// True if a row with the maximum score `top` (a base-2 exponent) needs no subtraction: its P
/// neither overflows T nor underflows to 0 near the maximum. float16 underflows below 2^-24.
template <class T>
__device__ __forceinline__ bool near_zero(float top) {
  return __is_same(T, float16) ? top > -2.0f && top < 10.0f : top > -40.0f && top < 20.0f;
}

/// Multiplies the accumulator entries of rows g and g + 8 by factor[0] and factor[1].
template <int kN>
__device__ __forceinline__ void multiply_rows(float (&r)[kN], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) r[i] *= factor[i / 2 % 2];
}

/// One map's softmax state for a thread's rows g and g + 8, g = lane / 4. The four lanes that share
/// these rows are a quad. A score or `approx_max` times c = scale log2(e) is a base-2 exponent.
struct SoftmaxState {
  float approx_max[2];  // approximate row maximum; -inf until the row has seen a column
  float sum[2];         // of exp2((s - approx_max) c) over this thread's columns

  __device__ __forceinline__ void reset() {
    approx_max[0] = approx_max[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
  }

  /// Sets the approximate maximum of rows that see the whole first tile to their largest score in
  /// columns 0, 1, 8, 9, 16, 17, 24 and 25, which the first lane of each quad holds.
  template <int kN>
  __device__ __forceinline__ void init_max(const float (&s)[kN]) {
    float top[2] = {s[0], s[2]};
#pragma unroll
    for (int i = 0; i < 16; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
    const int first_lane = threadIdx.x % 32 & ~3;
    approx_max[0] = __shfl_sync(0xffffffffu, top[0], first_lane);
    approx_max[1] = __shfl_sync(0xffffffffu, top[1], first_lane);
  }

  /// Sets the approximate maximum of rows that have seen no column before this tile to their
  /// largest score in it.
  template <int kN>
  __device__ __forceinline__ void init_missing_max(const float (&s)[kN]) {
    const bool missing = fminf(approx_max[0], approx_max[1]) == -INFINITY;
    if (!__any_sync(0xffffffffu, missing)) return;
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kN; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float row_top = quad_max(top[r]);
      if (approx_max[r] == -INFINITY) approx_max[r] = row_top;
    }
  }

  /// Replaces `init_missing_max` under an additive mask, where a row's first scores may lie far
  /// below later ones. An approximate maximum farther than kLargeMax from 0 follows the largest
  /// score of each tile, or becomes 0 if `near_zero` allows it. The product of a large maximum with
  /// c may have a rounding error above 1, so this function itself subtracts it from s. `origin`
  /// receives the offset that `exponentiate` still has to subtract. Returns true if the caller must
  /// multiply O by `factor`.
  template <class T, int kN>
  __device__ __forceinline__ bool track_large_max(float (&s)[kN], float c, float (&factor)[2],
                                                  float (&origin)[2]) {
    constexpr float kLargeMax = 64.0f;
    origin[0] = approx_max[0], origin[1] = approx_max[1];
    const bool large = fmaxf(fabsf(approx_max[0]), fabsf(approx_max[1])) > kLargeMax;
    if (!__any_sync(0xffffffffu, large)) return false;
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kN; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
    float shift[2] = {0.0f, 0.0f};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float row_top = quad_max(top[r]);
      factor[r] = 1.0f;
      if (fabsf(approx_max[r]) > kLargeMax && row_top > approx_max[r]) {
        const float next = near_zero<T>(row_top * c) ? 0.0f : row_top;
        factor[r] = ptx::exp2((approx_max[r] - next) * c);
        sum[r] *= factor[r];
        approx_max[r] = next;
      }
      if (fabsf(approx_max[r]) > kLargeMax && approx_max[r] != -INFINITY) shift[r] = approx_max[r];
      origin[r] = approx_max[r] - shift[r];
    }
#pragma unroll
    for (int i = 0; i < kN; ++i) s[i] -= shift[i / 2 % 2];
    return true;
  }

  /// Replaces s by P = exp2((s - origin) c) and adds P to the sums. `origin` is `approx_max`,
  /// except after `track_large_max`. kMissing: some rows may have seen no column yet; all their
  /// scores are -inf. Returns true if it raised the approximate maximum and rescaled P and the
  /// sums: the caller must then multiply O by `factor`.
  ///
  /// The state holds `approx_max` and not its product with c. Since this function computes the
  /// product, ptxas orders the multiply-adds row by row, with both constants in the operand cache.
  /// With interleaved rows, the kernel was 4 % slower, because the register file also feeds wgmma.
  template <class T, bool kMissing, int kN>
  __device__ __forceinline__ bool exponentiate(float (&s)[kN], float c, float (&factor)[2],
                                               const float (&origin)[2]) {
    float tile_sum[2];
    exponentials<kMissing>(s, c, origin, tile_sum);
    return add_sums<T>(s, c, factor, tile_sum);
  }
  /// Replaces s by P and returns P's sums over the tile in `tile_sum`.
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

  /// True if `approx_max` is 0 for all rows of the warp.
  __device__ __forceinline__ bool is_max_zero() const {
    return !__any_sync(0xffffffffu, approx_max[0] != 0.0f || approx_max[1] != 0.0f);
  }

  /// Does `exponentiate` for rows whose `approx_max` is 0: replaces s by exp2(s scale + bias). The
  /// biases include the factor log2(e).
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

  /// Adds `tile_sum` to the sums and rescales if it exceeds kSumBound. Sets `factor` and returns as
  /// `exponentiate` does.
  template <class T, int kN>
  __device__ __forceinline__ bool add_sums(float (&s)[kN], float c, float (&factor)[2],
                                           const float (&tile_sum)[2]) {
    sum[0] += tile_sum[0];
    sum[1] += tile_sum[1];
    const bool large = !(fmaxf(tile_sum[0], tile_sum[1]) < kSumBound<T>);
    if (!__any_sync(0xffffffffu, large)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) factor[r] = raise_max(r, c, quad_sum(tile_sum[r]));
    multiply_rows(s, factor);
    return true;
  }

  /// Raises row r's approximate maximum by log2(size), rounded down to an integer, and rescales its
  /// sum. Returns the factor. If size >= 2^127, the factor is NaN, so that finish.cuh detects the
  /// overflow.
  __device__ __forceinline__ float raise_max(int r, float c, float size) {
    const int bits = __float_as_int(fmaxf(size, 1.0f));
    const int exponent = (bits >> 23) - 127;
    const float factor = exponent < 127 ? __int_as_float((127 - exponent) << 23) : NAN;
    if (exponent > 0) approx_max[r] += __fdividef(static_cast<float>(exponent), c);
    sum[r] *= factor;
    return factor;
  }

  /// True if one of this thread's sums exceeds kSumBound.
  template <class T>
  __device__ __forceinline__ bool has_large_sum() const {
    return !(fmaxf(sum[0], sum[1]) < kSumBound<T>);
  }
  /// Raises the approximate maximum of each row in which a thread's sum exceeds kSumBound, and of
  /// no other row, so that a row's bits depend on its own sums alone. The caller must multiply O by
  /// `factor`.
  template <class T>
  __device__ __forceinline__ void rescale_large_sums(float c, float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float top = quad_max(sum[r]), size = quad_sum(sum[r]);
      factor[r] = raise_max(r, c, top < kSumBound<T> ? 1.0f : size);
    }
  }

  template <class T, bool kMissing, int kN>
  __device__ __forceinline__ bool exponentiate(float (&s)[kN], float c, float (&factor)[2]) {
    return exponentiate<T, kMissing>(s, c, factor, approx_max);
  }

  /// Returns the natural log-sum-exp of row r. `sum` must already be summed over the quad.
  __device__ __forceinline__ float lse(int r, float c) const {
    constexpr float kLn2 = 0.6931471805599453f;
    return sum[r] == 0.0f ? -INFINITY : approx_max[r] * c * kLn2 + __logf(sum[r]);
  }
};

/// Rounds P to T in the layout of a wgmma register operand.
template <class T, int kN>
__device__ __forceinline__ void round_rows(uint32_t (&p)[kN / 2], const float (&s)[kN]) {
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) p[i] = pack<T>(s[2 * i], s[2 * i + 1]);
}

}  // namespace diffattn::cuda::sm90
