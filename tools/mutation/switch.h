// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdlib>

// Included before every file of a mutated build. Each mutant asks on(id) whether it is the one that
// the environment variable DIFFATTN_MUTANT chooses; 0 or nothing chooses the original code.

namespace diffattn_mutation {

inline constexpr int kMaxMutants = 1 << 14;

__attribute__((visibility("default"))) inline std::atomic<bool> reached[kMaxMutants];

inline int chosen() {
  static const int id = [] {
    const char* text = std::getenv("DIFFATTN_MUTANT");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  return id;
}

inline bool on(int id) {
  if (chosen() == 0) reached[id].store(true, std::memory_order_relaxed);
  return chosen() == id;
}

}  // namespace diffattn_mutation
