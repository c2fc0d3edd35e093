// SPDX-License-Identifier: Apache-2.0
//
// Storage types on the device and their conversions to and from float.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace diffattn::cuda {

using bfloat16 = __nv_bfloat16;
using float16 = __half;

__device__ inline float widen(double x) { return static_cast<float>(x); }
__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widen(float16 x) { return __half2float(x); }

template <class T>
__device__ inline T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline bfloat16 narrow<bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline float16 narrow<float16>(float x) {
  return __float2half_rn(x);
}

/// Rounds two adjacent elements of a row to T and packs them into 32 bits, `low` in the low half.
template <class T>
__device__ inline uint32_t pack(float low, float high);
template <>
__device__ inline uint32_t pack<bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <>
__device__ inline uint32_t pack<float16>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// Returns the two elements of a packed register as floats.
template <class T>
__device__ inline float2 unpack(uint32_t pair) {
  const T* halves = reinterpret_cast<const T*>(&pair);
  return {widen(halves[0]), widen(halves[1])};
}

inline constexpr uint32_t kSigns = 0x80008000u;  // sign bits of both halves of a packed register

/// Sets the sign bit of each half of `pair` that is infinite or NaN. Such a half has all exponent
/// bits set, so adding one to the exponent carries into the sign bit. Callers must mask the result
/// with kSigns, because its other bits are arbitrary.
template <class T>
__device__ inline uint32_t non_finite_signs(uint32_t pair) {
  constexpr bool kHalf = __is_same(T, float16);
  return (pair & (kHalf ? 0x7c007c00u : 0x7f807f80u)) + (kHalf ? 0x04000400u : 0x00800080u);
}

/// True if either half of a packed register is infinite or NaN.
template <class T>
__device__ inline bool any_non_finite(uint32_t pair) {
  return (non_finite_signs<T>(pair) & kSigns) != 0;
}

}  // namespace diffattn::cuda
