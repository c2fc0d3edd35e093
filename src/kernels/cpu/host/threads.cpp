// SPDX-License-Identifier: Apache-2.0
//
// The library's own thread pool, and the hook with which a host program replaces it.

#include <sched.h>
#include <xmmintrin.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/cpu/parallel.h"

namespace diffattn::cpu {
namespace {

constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;

int64_t core_count() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  return std::max(1u, std::thread::hardware_concurrency());
}

/// A pool of sleeping threads that runs one job at a time; the caller works too. If the pool is
/// busy with the job of another thread, or the call comes from inside a job, the caller works
/// alone.
class Pool {
 public:
  ~Pool() { stop(); }

  void run(int64_t workers, void (*body)(void*), void* context) {
    if (workers <= 1 || busy_.test_and_set(std::memory_order_acquire)) return body(context);
    const Release release{busy_};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      while (static_cast<int64_t>(threads_.size()) < workers - 1) {
        threads_.emplace_back([this] { work(); });
      }
      body_ = body;
      context_ = context;
      wanted_ = workers - 1;
    }
    wake_.notify_all();
    body(context);
    std::unique_lock<std::mutex> lock(mutex_);
    wanted_ = 0;  // threads that have not started by now are not needed
    done_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  struct Release {
    std::atomic_flag& flag;
    ~Release() { flag.clear(std::memory_order_release); }
  };

  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopping_ || wanted_ > 0; });
      if (stopping_) return;
      --wanted_;
      ++running_;
      void (*const body)(void*) = body_;
      void* const context = context_;
      lock.unlock();
      body(context);
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::atomic_flag busy_;  // set while a job runs; a mutex must not be tried by its own thread
  std::mutex mutex_;       // guards everything below
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  void (*body_)(void*) = nullptr;
  void* context_ = nullptr;
  int64_t wanted_ = 0, running_ = 0;
  bool stopping_ = false;
};

std::atomic<int64_t> own_count{0};

int64_t own_thread_count() {
  static const int64_t cores = core_count();
  const int64_t count = own_count.load();
  return count > 0 ? count : cores;
}

void run_on_own_pool(int64_t workers, void (*body)(void*), void* context) {
  static Pool pool;
  pool.run(workers, body, context);
}

std::mutex hook_mutex;
Threads hook{own_thread_count, run_on_own_pool};

}  // namespace

Threads threads() {
  const std::lock_guard<std::mutex> lock(hook_mutex);
  return hook;
}

void use_threads(const Threads& threads) {
  const std::lock_guard<std::mutex> lock(hook_mutex);
  hook = threads;
}

void set_thread_count(int64_t count) { own_count = count; }

FlushDenormals::FlushDenormals() : before_(_mm_getcsr()) {
  _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZero);
}
FlushDenormals::~FlushDenormals() { _mm_setcsr(before_); }

}  // namespace diffattn::cpu
