// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "io/tokenizer/string_map.h"

namespace diffattn::io {

/// Counts words.
class WordCounts {
 public:
  void add(std::string_view word, uint64_t count = 1) {
    const auto fresh = static_cast<uint32_t>(counts_.size());
    const uint32_t index = index_.insert(word, fresh);
    if (index == fresh) counts_.push_back(0);
    counts_[index] += count;
  }
  void add(const WordCounts& other) {
    other.for_each([&](std::string_view word, uint64_t count) { add(word, count); });
  }
  /// Calls visit(word, count) for every word, in no particular order.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    index_.for_each([&](std::string_view word, uint32_t i) { visit(word, counts_[i]); });
  }
  size_t size() const { return counts_.size(); }

 private:
  StringMap index_;
  std::vector<uint64_t> counts_;
};

}  // namespace diffattn::io
