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

/// Highest resident memory since the last reset, above what was resident then. -1 where the kernel
/// does not tell.
class PeakMemory {
 public:
  PeakMemory();
  int64_t bytes() const;

 private:
  int64_t start_ = -1;
};

}  // namespace diffattn::app
