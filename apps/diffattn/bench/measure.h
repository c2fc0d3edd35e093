// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace diffattn::app {

/// Of repeated timings, in seconds.
struct Timing {
  double median = 0.0, fastest = 0.0, slowest = 0.0;
};

Timing summarise(std::vector<double> seconds);

/// Multiply-adds per second of one thread times `threads`, in FLOP/s, in float32 with the widest
/// vectors of this machine: what no kernel can pass. Takes about 50 ms.
double measure_fma_peak(int threads);

/// Highest memory in use since the construction, above what was in use then: resident memory of the
/// process, or what torch allocated on the current GPU. -1 where nobody tells.
class PeakMemory {
 public:
  explicit PeakMemory(bool on_gpu = false);
  int64_t bytes() const;

 private:
  bool on_gpu_;
  int64_t start_ = -1;
};

}  // namespace diffattn::app
