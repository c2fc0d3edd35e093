// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>

// Included before every file of a mutated build. Each mutant asks on(id) whether it is the one that
// the environment variable DIFFATTN_MUTANT chooses; 0 or nothing chooses the original code.

namespace diffattn_mutation {

inline constexpr int kMaxMutants = 1 << 14;

/// Returns kMaxMutants flags, which a test shares with the child processes that it starts.
__attribute__((visibility("default"))) inline std::atomic<bool>* reached() {
  static auto* const flags = static_cast<std::atomic<bool>*>(
      mmap(nullptr, kMaxMutants * sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  return flags;
}

inline int chosen() {
  static const int id = [] {
    const char* text = std::getenv("DIFFATTN_MUTANT");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  return id;
}

inline bool on(int id) {
  if (chosen() == 0) reached()[id].store(true, std::memory_order_relaxed);
  return chosen() == id;
}

}  // namespace diffattn_mutation
