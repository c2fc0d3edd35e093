// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

/// Marks a function that the compiler emits once per instruction set; the loader picks the copy.
/// Empty under sanitizers, whose runtime is not ready when the loader runs the resolver. A test
/// that wants one copy defines the attribute itself.
#if defined(DIFFATTN_EACH_ISA)
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DIFFATTN_EACH_ISA
#else
#define DIFFATTN_EACH_ISA \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif

namespace diffattn::cpu {

/// Returns exp(x) for x clamped to [-87, 88], as 2^n exp(f) with integer n and |f| <= ln(2) / 2.
[[gnu::always_inline]] inline float fast_exp(float x) {
  // Adding kRound = 1.5 * 2^23 rounds a float to an integer.
  constexpr float kLog2E = 1.44269504f, kRound = 12582912.0f;
  const float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  const float shifted = clamped * kLog2E + kRound;
  const float n = shifted - kRound;
  const float f = clamped - n * 0.693359375f + n * 2.12194440e-4f;  // ln 2 in two parts
  float p = 1.9875691500e-4f;
  p = p * f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.0f;
  const int32_t exponent = (std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound)) << 23;
  return std::bit_cast<float>(std::bit_cast<int32_t>(p) + exponent);
}

}  // namespace diffattn::cpu
