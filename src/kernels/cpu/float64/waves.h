// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cpu/float64/block.h"
#include "kernels/cpu/host/memory.h"
#include "kernels/cpu/parallel.h"

namespace diffattn::cpu::float64 {

inline int64_t most_panels(const Problem& problem) { return padded(problem.seq_k) / kLanes; }

/// Runs the tasks of all kv heads in parallel. Packs a few kv heads at a time (a wave), as many as
/// keep every thread busy. The order of a head's sums does not depend on the wave.
class Waves {
 public:
  /// in_order: one thread runs the tasks, because they add to shared sums.
  Waves(const Problem& problem, const View<const void>& v, bool backward, bool in_order = false)
      : problem_(problem), v_(v), backward_(backward), in_order_(in_order) {}

  /// Returns the number of kv heads of a wave, the last of which may have fewer.
  int64_t heads_at_once(int64_t tasks) const {
    const int64_t wanted = kTasksPerThread * threads().count();
    return std::max<int64_t>(1, wanted / std::max<int64_t>(1, tasks));
  }

  /// Calls body(head, i, task, memory) for task = 0 .. tasks - 1 of each kv head, number i of its
  /// wave, with `scratch` bytes of memory; then after(heads) once per wave.
  template <class Body, class After>
  void run(int64_t tasks, int64_t scratch, const Body& body, const After& after) const {
    const int64_t heads = problem_.batch * problem_.kv_heads;
    const int64_t at_once = heads_at_once(tasks);
    for (int64_t first = 0; first < heads; first += at_once) {
      const std::vector<PackedHead> wave = packed(first, std::min(heads, first + at_once));
      const int64_t count = static_cast<int64_t>(wave.size());
      const int64_t workers = in_order_ ? 1 : worker_count(count * tasks);
      char* memory = CallMemory::take(CallMemory::kScratch, workers * scratch);
      parallel_for(count * tasks, workers, [&](int64_t task, int64_t worker) {
        const int64_t i = task / tasks;
        body(wave[static_cast<size_t>(i)], i, task % tasks, memory + worker * scratch);
      });
      after(wave);
    }
  }

 private:
  static constexpr int64_t kTasksPerThread = 4;

  std::vector<PackedHead> packed(int64_t first, int64_t end) const {
    const auto place = [&](Carver<double> carver, std::vector<PackedHead>* heads) {
      for (int64_t i = first; i < end; ++i) {
        heads->push_back(
            place_head(problem_, i / problem_.kv_heads, i % problem_.kv_heads, backward_, carver));
      }
      return carver.used;
    };
    std::vector<PackedHead> heads;
    const int64_t bytes = place({}, &heads);
    heads.clear();
    place({CallMemory::take(CallMemory::kPacked, bytes), 0}, &heads);
    const int64_t tasks = (end - first) * most_panels(problem_);
    parallel_for(tasks, worker_count(tasks), [&](int64_t task, int64_t) {
      const PackedHead& head = heads[static_cast<size_t>(task / most_panels(problem_))];
      const int64_t panel = task % most_panels(problem_);
      if (panel < head.panels) pack_panel(problem_, v_, head, panel);
    });
    return heads;
  }

  const Problem& problem_;
  const View<const void>& v_;
  const bool backward_, in_order_;
};

}  // namespace diffattn::cpu::float64
