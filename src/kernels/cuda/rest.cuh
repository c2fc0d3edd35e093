// SPDX-License-Identifier: Apache-2.0
//
// What rounding a float to 16 bits loses, in one more byte. As words, a float and its rounded
// neighbour differ by at most half a unit in the last place of T, 2^15 (bf16) or 2^12 (fp16) of the
// float's own; the byte counts 1/256 of that unit. Together they hold 16 (19) bits of mantissa,
// which delta = dO.O needs where a row's probabilities are close to 0 and 1: dP - delta cancels.
#pragma once

#include "kernels/cuda/element.cuh"

namespace diffattn::cuda {

template <class T>
inline constexpr int kRestShift = __is_same(T, float16) ? 5 : 8;

/// Of x, which was rounded to `rounded`. 0 where that is infinite or NaN.
template <class T>
__device__ inline int rest_of(float x, T rounded) {
  const float wide = widen(rounded);
  const int units = static_cast<int>(__float_as_uint(x) - __float_as_uint(wide));
  const int rest = (units + (1 << (kRestShift<T> - 1))) >> kRestShift<T>;
  return fabsf(wide) < INFINITY ? max(-128, min(127, rest)) : 0;
}

/// x again, to 1/512 of the unit in the last place of T (1/256 where bytes were rounded down).
/// Below T's normal numbers, where the byte may stand for more than the number itself, and beyond
/// them: `rounded` alone.
template <class T>
__device__ inline float with_rest(T rounded, int rest) {
  constexpr float kSmallest = __is_same(T, float16) ? 0x1p-14f : 0x1p-126f;
  const float wide = widen(rounded);
  if (!(fabsf(wide) >= kSmallest && fabsf(wide) < INFINITY)) return wide;
  return __uint_as_float(__float_as_uint(wide) + (rest << kRestShift<T>));
}

}  // namespace diffattn::cuda
