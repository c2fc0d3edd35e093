// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "diffattn/data/random.h"
#include "diffattn/io/error.h"

// PRIVATE header of the data layer.

namespace diffattn::data {

inline constexpr std::uint64_t kSplitStream = 0x53504c4954;  // "SPLIT"

/// Whether item number `index` of `count` belongs to the second part of a split. At least one item
/// of two or more does when fraction is above 0, and at least one does not when it is below 1.
class SplitRule {
 public:
  SplitRule(std::uint64_t count, double fraction, std::uint64_t seed)
      : order_(count, seed, kSplitStream) {
    if (!(fraction >= 0 && fraction < 1)) {
      throw io::Error("validation fraction",
                      "expected a number in [0, 1), got " + std::to_string(fraction));
    }
    second_ = static_cast<std::uint64_t>(static_cast<double>(count) * fraction + 0.5);
    if (fraction > 0 && second_ == 0 && count > 1) second_ = 1;
    if (second_ == count && count > 0) second_ = count - 1;
  }
  bool second(std::uint64_t index) const { return order_(index) < second_; }

 private:
  Permutation order_;
  std::uint64_t second_ = 0;
};

}  // namespace diffattn::data
