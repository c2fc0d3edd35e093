// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace diffattn::cpu {

/// Cuts one block of memory into arrays that start on cache lines. Without memory it only counts:
/// the same code then says how much is needed. `Tag` keeps the copies of different instruction sets
/// apart.
template <class Tag>
struct Carver {
  char* memory = nullptr;
  int64_t used = 0;  // bytes

  template <class T>
  T* take(int64_t count) {
    char* at = memory == nullptr ? nullptr : memory + used;
    used += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }
};

}  // namespace diffattn::cpu
