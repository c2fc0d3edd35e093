// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "diffattn/data/random.h"
#include "diffattn/io/error.h"

namespace diffattn::data {

/// Returns a uniform number in [0, n).
inline int64_t draw(Random& random, int64_t n) {
  return static_cast<int64_t>(random.below(static_cast<uint64_t>(n)));
}

/// Returns `count` different numbers below `n` in random order: the front of a Fisher-Yates
/// shuffle. For few numbers it stores only the swapped positions; the result is the same.
inline std::vector<int64_t> draw_different(Random& random, int64_t n, int64_t count) {
  std::vector<int64_t> drawn(static_cast<size_t>(count));
  if (count * count >= n) {
    std::vector<int64_t> numbers(static_cast<size_t>(n));
    std::iota(numbers.begin(), numbers.end(), int64_t{0});
    for (int64_t i = 0; i < count; ++i) {
      const auto place = static_cast<size_t>(i);
      const auto other = static_cast<size_t>(i + draw(random, n - i));
      std::swap(numbers[place], numbers[other]);
      drawn[place] = numbers[place];
    }
    return drawn;
  }
  struct Moved {
    int64_t place, number;
  };
  std::vector<Moved> moved;
  moved.reserve(drawn.size());
  const auto number_at = [&](int64_t place) {
    const auto last = std::find_if(moved.rbegin(), moved.rend(),
                                   [&](const Moved& one) { return one.place == place; });
    return last == moved.rend() ? place : last->number;
  };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t other = i + draw(random, n - i);
    drawn[static_cast<size_t>(i)] = number_at(other);
    moved.push_back({other, number_at(i)});
  }
  return drawn;
}

/// Throws io::Error unless low <= value <= high.
inline void expect_option(const std::string& name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    throw io::Error(name, "expected a number in [" + std::to_string(low) + ", " +
                              std::to_string(high) + "], got " + std::to_string(value));
  }
}

inline constexpr int64_t kMostOfATask = int64_t{1} << 24;  // largest option of a generated task

}  // namespace diffattn::data
