// SPDX-License-Identifier: Apache-2.0
//
// The "rest": one byte that stores the error of rounding a float to a 16-bit type T, in 1/256 of
// T's unit in the last place (ulp).
//
//   rest = (bits(x) - bits(float(rounded))) / 2^kRestShift, rounded and clamped to [-128, 127]
//
// The difference of the bit patterns is at most half an ulp of T: 2^15 float ulps for bfloat16,
// 2^12 for float16. Rounded value and rest together hold 16 (bfloat16) or 19 (float16) mantissa
// bits. The backward needs them for delta = dO.O: dP - delta cancels where probabilities are close
// to 0 or 1.
#pragma once

#include "kernels/cuda/element.cuh"

namespace diffattn::cuda {

template <class T>
inline constexpr int kRestShift = __is_same(T, float16) ? 5 : 8;

/// Returns the rest of x, which the caller rounded to `rounded`; 0 if that is infinite or NaN.
template <class T>
__device__ inline int rest_of(float x, T rounded) {
  const float wide = widen(rounded);
  const int units = static_cast<int>(__float_as_uint(x) - __float_as_uint(wide));
  const int rest = (units + (1 << (kRestShift<T> - 1))) >> kRestShift<T>;
  return fabsf(wide) < INFINITY ? max(-128, min(127, rest)) : 0;
}

/// Reconstructs x to 1/512 ulp of T (1/256 ulp where the byte was clamped). Returns `rounded` alone
/// if it is infinite, NaN or below T's normal range: an ulp of a subnormal float16 exceeds 2^13
/// float ulps.
template <class T>
__device__ inline float with_rest(T rounded, int rest) {
  constexpr float kSmallest = __is_same(T, float16) ? 0x1p-14f : 0x1p-126f;
  const float wide = widen(rounded);
  if (!(fabsf(wide) >= kSmallest && fabsf(wide) < INFINITY)) return wide;
  return __uint_as_float(__float_as_uint(wide) + (rest << kRestShift<T>));
}

}  // namespace diffattn::cuda
