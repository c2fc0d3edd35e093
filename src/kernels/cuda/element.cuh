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

inline constexpr uint32_t kSigns = 0x80008000u;  // of both halves of a packed register

/// In kSigns: which halves of a packed register are infinite or NaN. All of their exponent bits are
/// set, so that one more carries into the sign. Other bits mean nothing.
template <class T>
__device__ inline uint32_t non_finite_signs(uint32_t pair) {
  constexpr bool kHalf = __is_same(T, float16);
  return (pair & (kHalf ? 0x7c007c00u : 0x7f807f80u)) + (kHalf ? 0x04000400u : 0x00800080u);
}

/// Is either half of a packed register infinite or NaN?
template <class T>
__device__ inline bool any_non_finite(uint32_t pair) {
  return (non_finite_signs<T>(pair) & kSigns) != 0;
}

}  // namespace diffattn::cuda
