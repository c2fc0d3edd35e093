// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace diffattn::app {

/// Measures how far memory use rises above its level at construction. It counts the resident memory
/// of the process, or torch's allocations on the current GPU.
class PeakMemory {
 public:
  explicit PeakMemory(bool on_gpu = false);
  /// Returns the rise in bytes, or -1 if Linux does not report it.
  int64_t bytes() const;

 private:
  bool on_gpu_;
  int64_t start_ = -1;
};

}  // namespace diffattn::app
