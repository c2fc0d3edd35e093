// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace diffattn::cpu {

/// Divides one block of memory into arrays aligned to cache lines. If `memory` is null it only
/// counts bytes, so that the same code computes the size needed. `Tag` gives every instruction set
/// an instantiation of its own (block.h says why).
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
