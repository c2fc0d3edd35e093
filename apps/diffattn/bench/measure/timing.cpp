// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/bench/measure/timing.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>

namespace diffattn::app {

Timing summarise(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const double median = (seconds[(seconds.size() - 1) / 2] + seconds[seconds.size() / 2]) / 2;
  return {median, seconds.front(), seconds.back()};
}

std::vector<BenchSamples> take_turns(size_t count, int repeat,
                                     const std::function<BenchSample(size_t candidate)>& run) {
  std::vector<BenchSamples> all(count);
  std::vector<std::vector<double>> seconds(count);
  for (int turn = -1; turn < repeat; ++turn) {  // turn -1 warms up
    for (size_t i = 0; i < count; ++i) {
      const BenchSample sample = run(i);
      if (turn < 0) {
        all[i].result = sample.result;
      } else {
        seconds[i].push_back(sample.seconds);
        all[i].memory = std::max(all[i].memory, sample.memory);
      }
    }
  }
  for (size_t i = 0; i < count; ++i) all[i].timing = summarise(seconds[i]);
  return all;
}

double wall_seconds(bool on_gpu, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  if (on_gpu) torch::cuda::synchronize();
  const auto start = Clock::now();
  work();
  if (on_gpu) torch::cuda::synchronize();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double gpu_seconds(const std::function<void()>& work) {
  constexpr int64_t kFlushBytes = int64_t{512} << 20;  // several times the caches of any GPU
  // Never freed: its destructor would run after the CUDA driver has shut down.
  static torch::Tensor& flush = *new torch::Tensor(
      torch::empty({kFlushBytes}, torch::dtype(torch::kUInt8).device(torch::kCUDA)));
  const c10::impl::VirtualGuardImpl gpu(c10::kCUDA);
  const c10::Stream stream = gpu.getStream(gpu.getDevice());
  c10::Event start(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  torch::cuda::synchronize();
  // While the fills run, the host queues the work behind them. One fill ends before autograd's
  // thread wakes up, so we queue four.
  for (int i = 0; i < 4; ++i) flush.zero_();
  start.record(stream);
  work();
  end.record(stream);
  end.synchronize();
  return start.elapsedTime(end) * 1e-3;
}

}  // namespace diffattn::app
