// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/host/head.h"
#include "kernels/cpu/host/kernels.h"
#include "kernels/cpu/host/memory.h"
#include "kernels/cpu/parallel.h"

namespace diffattn::cpu {

/// Runs blocks of query rows of all kv heads in parallel. It packs a few kv heads at a time (a
/// wave); then the blocks of these heads are independent tasks. `scratch`: bytes per worker.
class Waves {
 public:
  Waves(const PackPlan& plan, int64_t scratch) : plan_(plan), scratch_(scratch) {}

  /// Calls body(head, keys, block, memory) for block = 0 .. blocks(head) - 1 of every head. Starts
  /// with a head's last block: under a causal mask late rows see most keys, and no long task should
  /// be left for the end.
  template <class Blocks, class Body>
  void run(std::span<const Head> heads, const Blocks& blocks, const Body& body) const {
    for (size_t first = 0; first < heads.size();) {
      const size_t last = end_of_wave(heads, first, blocks);
      run_wave(heads.subspan(first, last - first), blocks, body);
      first = last;
    }
  }

 private:
  /// Returns the end of the wave that starts at `first`. It takes heads until every worker has
  /// kTasksPerWorker blocks or the packed copies would exceed kWaveBytes.
  template <class Blocks>
  size_t end_of_wave(std::span<const Head> heads, size_t first, const Blocks& blocks) const {
    const int64_t wanted = kTasksPerWorker * threads().count();
    int64_t tasks = 0, bytes = 0;
    size_t last = first;
    while (last < heads.size() && tasks < wanted) {
      bytes += plan_.bytes(heads[last]);
      if (last > first && bytes > kWaveBytes) break;
      tasks += blocks(heads[last++]);
    }
    return last;
  }

  template <class Blocks, class Body>
  void run_wave(std::span<const Head> heads, const Blocks& blocks, const Body& body) const {
    int64_t bytes = 0, pack_tasks = 0, tasks = 0;
    for (const Head& head : heads) {
      bytes += plan_.bytes(head);
      pack_tasks += plan_.panels(head);
      tasks += blocks(head);
    }
    char* memory = CallMemory::take(CallMemory::kPacked, bytes);
    std::vector<PackedKeys> keys;
    for (const Head& head : heads) {
      keys.push_back(plan_.place(head, memory));
      memory += plan_.bytes(head);
    }
    parallel_for(pack_tasks, worker_count(pack_tasks), [&](int64_t task, int64_t) {
      size_t i = 0;
      while (task >= keys[i].panels) task -= keys[i++].panels;
      plan_.pack(heads[i], keys[i], task);
    });

    const int64_t workers = worker_count(tasks);
    char* scratches = CallMemory::take(CallMemory::kScratch, workers * scratch_);
    parallel_for(tasks, workers, [&](int64_t task, int64_t worker) {
      size_t i = 0;
      while (task >= blocks(heads[i])) task -= blocks(heads[i++]);
      body(heads[i], keys[i], blocks(heads[i]) - 1 - task, scratches + worker * scratch_);
    });
  }

  const PackPlan& plan_;
  const int64_t scratch_;
};

}  // namespace diffattn::cpu
