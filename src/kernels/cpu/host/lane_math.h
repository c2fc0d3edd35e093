// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// All functions here are inlined into functions of each_isa.h, so no vector is ever passed.
#pragma GCC diagnostic ignored "-Wpsabi"

/// 16 floats, which every instruction set adds in the same order, and functions of them.
namespace diffattn::cpu {

inline constexpr int kLanes = 16;
using Vector = float __attribute__((vector_size(kLanes * sizeof(float))));

/// Returns `count` floats, and 0 in the other lanes.
[[gnu::always_inline]] inline Vector lanes_of(const float* from, int64_t count) {
  Vector x{};
  if (count == kLanes) {
    __builtin_memcpy(&x, from, sizeof(x));
  } else {
    for (int64_t j = 0; j < count; ++j) x[j] = from[j];
  }
  return x;
}

[[gnu::always_inline]] inline void store_lanes(const Vector& x, int64_t count, float* to) {
  if (count == kLanes) {
    __builtin_memcpy(to, &x, sizeof(x));
  } else {
    for (int64_t j = 0; j < count; ++j) to[j] = x[j];
  }
}

/// Returns the larger of x and `least`, both negative: the one whose bits are the smaller integer.
/// Takes one instruction, where comparing floats takes two. 0 stays 0; NaN may become `least`.
[[gnu::always_inline]] inline Vector at_least(const Vector& x, float least) {
  using Words = uint32_t __attribute__((vector_size(kLanes * sizeof(uint32_t))));
  const Vector limit = Vector{} + least;
  Words bits, limit_bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  __builtin_memcpy(&limit_bits, &limit, sizeof(limit_bits));
  bits = bits < limit_bits ? bits : limit_bits;
  Vector larger;
  __builtin_memcpy(&larger, &bits, sizeof(larger));
  return larger;
}

/// Returns 2^exponent, as 2^n 2^f with integer n and |f| <= 1/2: within 2e-7 of it, 2^-126 below
/// -126 and 2^127 above 127. With kFalling, exponents must not be positive.
template <bool kFalling>
[[gnu::always_inline]] inline Vector power_of_two(const Vector& exponent) {
  using Integers = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));
  constexpr float kRound = 12582912.0f;  // adding 1.5 * 2^23 rounds a float to an integer
  constexpr float kLeast = -126.0f, kMost = 127.0f;
  Vector x = exponent;
  if constexpr (kFalling) {
    x = at_least(x, kLeast);
  } else {
    x = x < kLeast ? Vector{} + kLeast : x;
    x = x > kMost ? Vector{} + kMost : x;
  }
  const Vector shifted = x + kRound, f = x - (shifted - kRound);
  Vector p = f * 1.5353361911e-4f + 1.3398874414e-3f;
  p = p * f + 9.6184373577e-3f;
  p = p * f + 5.5503324711e-2f;
  p = p * f + 2.4022647914e-1f;
  p = p * f + 6.9314720286e-1f;
  p = p * f + 1.0f;
  Integers bits, power;
  __builtin_memcpy(&bits, &p, sizeof(bits));
  __builtin_memcpy(&power, &shifted, sizeof(power));
  bits += power << 23;
  __builtin_memcpy(&p, &bits, sizeof(p));
  return p;
}

inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

/// Returns -|x|.
[[gnu::always_inline]] inline Vector negative(const Vector& x) {
  using Words = uint32_t __attribute__((vector_size(kLanes * sizeof(uint32_t))));
  Words bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  bits |= 0x80000000u;
  Vector y;
  __builtin_memcpy(&y, &bits, sizeof(y));
  return y;
}

/// Returns log(1 + exp(x)) = max(x, 0) + log(1 + z) with z = exp(-|x|). A polynomial gives
/// log(1 + z) / z.
[[gnu::always_inline]] inline Vector softplus(const Vector& x) {
  const Vector z = power_of_two<true>(negative(x) * kLog2E);
  Vector p = z * 5.364825438e-3f - 3.006579672e-2f;
  p = p * z + 7.920454277e-2f;
  p = p * z - 1.375380295e-1f;
  p = p * z + 1.915365522e-1f;
  p = p * z - 2.485716374e-1f;
  p = p * z + 3.332132263e-1f;
  p = p * z - 4.999964796e-1f;
  p = p * z + 1.0f;
  return p * z + (x < 0.0f ? Vector{} : x);  // NaN stays
}

/// Returns 1 / (1 + exp(-x)).
[[gnu::always_inline]] inline Vector sigmoid(const Vector& x) {
  return 1.0f / (1.0f + power_of_two<false>(x * -kLog2E));
}

}  // namespace diffattn::cpu
