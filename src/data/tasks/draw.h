// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "diffattn/data/random.h"
#include "diffattn/io/error.h"

// PRIVATE header of the data layer.

namespace diffattn::data {

inline std::int64_t draw(Random& random, std::int64_t n) {
  return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(n)));
}

/// `count` different numbers below `n`, in random order: the front of a shuffle of all of them, of
/// which only places that were swapped are kept where these are few.
inline std::vector<std::int64_t> draw_different(Random& random, std::int64_t n,
                                                std::int64_t count) {
  std::vector<std::int64_t> drawn(static_cast<std::size_t>(count));
  if (count * count >= n) {
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(n));
    std::iota(numbers.begin(), numbers.end(), std::int64_t{0});
    for (std::int64_t i = 0; i < count; ++i) {
      const auto place = static_cast<std::size_t>(i);
      const auto other = static_cast<std::size_t>(i + draw(random, n - i));
      std::swap(numbers[place], numbers[other]);
      drawn[place] = numbers[place];
    }
    return drawn;
  }
  struct Moved {
    std::int64_t place, number;
  };
  std::vector<Moved> moved;
  moved.reserve(drawn.size());
  const auto number_at = [&](std::int64_t place) {
    const auto last = std::find_if(moved.rbegin(), moved.rend(),
                                   [&](const Moved& one) { return one.place == place; });
    return last == moved.rend() ? place : last->number;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t other = i + draw(random, n - i);
    drawn[static_cast<std::size_t>(i)] = number_at(other);
    moved.push_back({other, number_at(i)});
  }
  return drawn;
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
