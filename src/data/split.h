// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "diffattn/data/random.h"
#include "diffattn/io/error.h"

namespace diffattn::data {

inline constexpr uint64_t kSplitStream = 0x53504c4954;  // "SPLIT"

/// Decides which of `count` items belong to the second part of a split. With two or more items and
/// fraction > 0, each part has at least one item.
class SplitRule {
 public:
  SplitRule(uint64_t count, double fraction, uint64_t seed) : order_(count, seed, kSplitStream) {
    if (!(fraction >= 0 && fraction < 1)) {
      throw io::Error("validation fraction",
                      "expected a number in [0, 1), got " + std::to_string(fraction));
    }
    second_ = static_cast<uint64_t>(static_cast<double>(count) * fraction + 0.5);
    if (fraction > 0 && second_ == 0 && count > 1) second_ = 1;
    if (second_ == count && count > 0) second_ = count - 1;
  }
  /// True if item `index` belongs to the second part.
  bool second(uint64_t index) const { return order_(index) < second_; }

 private:
  Permutation order_;
  uint64_t second_ = 0;
};

}  // namespace diffattn::data
