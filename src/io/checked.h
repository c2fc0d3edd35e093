// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

// Loaders compute sizes and offsets from numbers found in files. They do so here and nowhere else:
// a raw `*` or `+` on such a number wraps silently and turns into a short buffer.

namespace diffattn::io {

/// a + b, or nothing when the sum does not fit.
constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

/// a - b, or nothing when b > a.
constexpr std::optional<std::uint64_t> checked_sub(std::uint64_t a, std::uint64_t b) noexcept {
  if (b > a) return std::nullopt;
  return a - b;
}

/// a * b, or nothing when the product does not fit.
constexpr std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

}  // namespace diffattn::io
