// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diffattn/data/random.h"
#include "diffattn/io/error.h"

// PRIVATE header of the data layer.

namespace diffattn::data {

/// `count` different numbers below `n`, in random order.
inline std::vector<std::int64_t> draw_different(Random& random, std::int64_t n,
                                                std::int64_t count) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) numbers[static_cast<std::size_t>(i)] = i;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto other = static_cast<std::size_t>(
        i + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(n - i))));
    std::swap(numbers[static_cast<std::size_t>(i)], numbers[other]);
  }
  numbers.resize(static_cast<std::size_t>(count));
  return numbers;
}

inline std::int64_t draw(Random& random, std::int64_t n) {
  return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(n)));
}

/// Throws io::Error unless low <= value <= high.
inline void expect_option(const std::string& name, std::int64_t value, std::int64_t low,
                          std::int64_t high) {
  if (value < low || value > high) {
    throw io::Error(name, "expected a number in [" + std::to_string(low) + ", " +
                              std::to_string(high) + "], got " + std::to_string(value));
  }
}

inline constexpr std::int64_t kMostOfATask = std::int64_t{1} << 24;

}  // namespace diffattn::data
