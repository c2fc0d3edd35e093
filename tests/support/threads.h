// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "diffattn/kernels/cpu.h"

namespace diffattn::testing {

/// So many threads for the length of a scope, then one per core again.
class ThreadCount {
 public:
  explicit ThreadCount(int64_t count) { cpu::set_thread_count(count); }
  ~ThreadCount() { cpu::set_thread_count(0); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;
};

}  // namespace diffattn::testing
