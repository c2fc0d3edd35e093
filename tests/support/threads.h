// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "diffattn/kernels/cpu.h"

namespace diffattn::testing {

/// Sets the number of threads for its scope, then returns to one thread per core.
class ThreadCount {
 public:
  explicit ThreadCount(int64_t count) { cpu::set_thread_count(count); }
  ~ThreadCount() { cpu::set_thread_count(0); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;
};

}  // namespace diffattn::testing
