// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace diffattn::app {

/// Summary of repeated timings, in seconds.
struct Timing {
  double median = 0.0, fastest = 0.0, slowest = 0.0;
};

Timing summarise(std::vector<double> seconds);

/// Result of one run of one candidate.
struct BenchSample {
  double seconds = 0.0;
  int64_t memory = 0;  // peak, in bytes
  torch::Tensor result;
};

/// Results of all runs of one candidate.
struct BenchSamples {
  Timing timing;
  int64_t memory = 0;    // largest peak, in bytes
  torch::Tensor result;  // of the warm-up run
};

/// Runs candidates 0 ... count - 1 in turn, `repeat` times after a warm-up. Because they take
/// turns, a noisy neighbour on the machine slows all of them down alike.
std::vector<BenchSamples> take_turns(size_t count, int repeat,
                                     const std::function<BenchSample(size_t candidate)>& run);

/// Returns the wall-clock seconds of `work`; on a GPU until it has finished.
double wall_seconds(bool on_gpu, const std::function<void()>& work);

/// Returns the seconds that the GPU takes for `work`, between two events on its stream, with its
/// caches flushed first. Host time counts only if it is the longer one.
double gpu_seconds(const std::function<void()>& work);

}  // namespace diffattn::app
