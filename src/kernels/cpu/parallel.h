// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "diffattn/kernels/cpu.h"

namespace diffattn::cpu {

/// Returns the thread pool in use. Kernels run in parallel only through it.
Threads threads();

/// Returns the number of workers for `tasks` tasks: one per task, up to the number of threads.
inline int64_t worker_count(int64_t tasks) {
  const int64_t most = threads().count();
  return tasks < most ? tasks : most;
}

/// Flushes denormals to zero in its scope. One denormal operand makes a multiply-add tens of times
/// slower, and far from the diagonal most softmax entries are denormal.
class FlushDenormals {
 public:
  FlushDenormals();
  ~FlushDenormals();
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned before_;
};

/// Calls body(task, worker) once for each task = 0 .. tasks - 1. `worker` < workers is unique among
/// the calls that run at the same time. Workers take tasks in order from a shared counter, so a
/// long task leaves no other worker idle. A task's result must not depend on its worker.
template <class Body>
void parallel_for(int64_t tasks, int64_t workers, const Body& body) {
  struct Context {
    const Body& body;
    const int64_t tasks, workers;
    std::atomic<int64_t> next_task{0}, next_worker{0};
  } context{body, tasks, workers};
  if (tasks <= 0) return;
  threads().run(
      workers,
      [](void* opaque) {
        Context& c = *static_cast<Context*>(opaque);
        const int64_t worker = c.next_worker++;
        if (worker >= c.workers) return;
        const FlushDenormals flush;
        for (int64_t task = c.next_task++; task < c.tasks; task = c.next_task++) {
          c.body(task, worker);
        }
      },
      &context);
}

}  // namespace diffattn::cpu
