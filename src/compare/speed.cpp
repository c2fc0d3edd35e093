// SPDX-License-Identifier: Apache-2.0
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <atomic>

#include "compare/measure.h"

namespace diffattn::compare {
namespace {

constexpr int kTimedRounds = 7;

/// Counts the bytes that torch allocates in a thread, and in backward passes that start there.
class TensorBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    const int64_t now = held_.fetch_add(size) + size;
    int64_t peak = peak_.load();
    while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
    }
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_.load(); }

 private:
  std::atomic<int64_t> held_{0}, peak_{0};
};

/// Returns the peak memory of a new model: weights, optimiser and two updates.
int64_t bytes_of_training(const Trained& trained) {
  const auto bytes = std::make_shared<TensorBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  train::Trainer trainer(train::new_task_model(trained.config, *trained.data), trained.config);
  const auto batches = trained.data->train_batches();
  trainer.step(*batches);
  trainer.step(*batches);
  return bytes->peak();
}

}  // namespace

void measure_speed(std::vector<Trained>& trained, Comparison& comparison) {
  std::vector<std::vector<double>> seconds(trained.size());
  for (size_t i = 0; i < trained.size(); ++i) {
    comparison.models[i].step_bytes = bytes_of_training(trained[i]);
  }
  for (int round = 0; round < kTimedRounds; ++round) {
    for (size_t i = 0; i < trained.size(); ++i) {
      seconds[i].push_back(trained[i].trainer->step(*trained[i].batches).seconds);
    }
  }
  for (size_t i = 0; i < trained.size(); ++i) {
    std::ranges::nth_element(seconds[i], seconds[i].begin() + kTimedRounds / 2);
    comparison.models[i].step_seconds = seconds[i][kTimedRounds / 2];
  }
}

}  // namespace diffattn::compare
