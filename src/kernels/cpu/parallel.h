// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "diffattn/kernels/cpu.h"

namespace diffattn::cpu {

/// The threads that are in use: the single seam through which kernels run in parallel.
Threads threads();

/// The number of workers that `count` tasks are worth.
inline int64_t worker_count(int64_t tasks) {
  const int64_t most = threads().count();
  return tasks < most ? tasks : most;
}

/// Flushes denormals while it lives: one denormal operand makes a multiply-add tens of times
/// slower, and far from the diagonal most of a softmax is denormal.
class FlushDenormals {
 public:
  FlushDenormals();
  ~FlushDenormals();
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned before_;
};

/// Calls body(task, worker) for task = 0 .. tasks - 1, each once, with worker < workers unique
/// among the calls that run at one time. Tasks are taken from a counter in order, so long ones do
/// not leave other workers idle; what a task computes must not depend on who runs it.
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
