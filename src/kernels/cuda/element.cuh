// SPDX-License-Identifier: Apache-2.0
//
// The storage types on the device, and how they become float and back.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace diffattn::cuda {

using bfloat16 = __nv_bfloat16;
using float16 = __half;

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

/// Two neighbours of a row in one 32-bit register, `low` at the lower address.
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

/// The two floats in a packed register.
template <class T>
__device__ inline float2 unpack(uint32_t pair) {
  const T* halves = reinterpret_cast<const T*>(&pair);
  return {widen(halves[0]), widen(halves[1])};
}

/// Is either half of a packed register infinite or NaN (all exponent bits set)?
template <class T>
__device__ inline bool any_non_finite(uint32_t pair) {
  constexpr uint32_t kExponent = sizeof(T) == 2 && __is_same(T, float16) ? 0x7c00u : 0x7f80u;
  return (pair & kExponent) == kExponent || ((pair >> 16) & kExponent) == kExponent;
}

}  // namespace diffattn::cuda
