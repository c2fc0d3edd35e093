// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

// Loaders compute sizes and offsets from numbers in files. They must use these functions: a plain
// `*` or `+` would wrap silently and give a buffer that is too short.

namespace diffattn::io {

/// Returns a + b, or nullopt if the sum overflows.
constexpr std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) noexcept {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

/// Returns a - b, or nullopt if b > a.
constexpr std::optional<uint64_t> checked_sub(uint64_t a, uint64_t b) noexcept {
  if (b > a) return std::nullopt;
  return a - b;
}

/// Returns a * b, or nullopt if the product overflows.
constexpr std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) noexcept {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

}  // namespace diffattn::io
