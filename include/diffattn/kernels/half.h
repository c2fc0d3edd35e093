// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

namespace diffattn {

/// The two 16-bit storage types. Widening to float is exact; narrowing rounds to nearest even.
/// We define them here because g++ 11 and 12 have no `__bf16` arithmetic.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    if ((word & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((word >> 16) | 0x40u);  // keep NaN a NaN
    } else {
      bits = static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
};

struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float value) {
    uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    const uint16_t sign = static_cast<uint16_t>((word >> 16) & 0x8000u);
    const uint32_t magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {  // NaN
      bits = static_cast<uint16_t>(sign | 0x7e00u);
    } else if (magnitude >= 0x477ff000u) {  // rounds to 2^16 or beyond: infinity
      bits = static_cast<uint16_t>(sign | 0x7c00u);
    } else if (magnitude < 0x38800000u) {  // below 2^-14: subnormal
      // A float in [0.5, 1) has the same unit in the last place (2^-24) as a subnormal half, so
      // adding 0.5 rounds to nearest even.
      float positive;
      std::memcpy(&positive, &magnitude, sizeof positive);
      positive += 0.5f;
      uint32_t rounded;
      std::memcpy(&rounded, &positive, sizeof rounded);
      bits = static_cast<uint16_t>(sign | (rounded - 0x3f000000u));
    } else {
      const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
      bits = static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
    }
  }
  explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fu;
    const uint32_t fraction = bits & 0x3ffu;
    uint32_t word;
    if (exponent == 0x1fu) {
      word = sign | 0x7f800000u | (fraction << 13);
    } else if (exponent != 0) {
      word = sign | ((exponent + 112u) << 23) | (fraction << 13);
    } else {
      const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
      std::memcpy(&word, &magnitude, sizeof word);
      word |= sign;
    }
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
};

}  // namespace diffattn
