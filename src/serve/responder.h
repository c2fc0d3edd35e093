// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "serve/answer.h"

namespace diffattn::serve {

/// Turns the events of the inference thread into answers, in a thread of its own, so that text and
/// JSON take no time of inference. Thread-safe.
class Responder {
 public:
  Responder();
  ~Responder();

  /// Gives the events of a job to an answer.
  void add(uint64_t job, std::shared_ptr<Answer> answer);
  /// Drops further events of a job.
  void forget(uint64_t job);
  /// Takes events; see EventSink.
  void push(std::vector<Event>&& events);
  /// Calls `work`, which may not throw, in the responder's thread.
  void run_soon(std::function<void()> work);

  /// Number of answers that are not complete.
  size_t open() const;

 private:
  void run();

  mutable std::mutex mutex_;
  std::condition_variable news_;
  std::map<uint64_t, std::shared_ptr<Answer>> answers_;
  std::deque<std::vector<Event>> events_;
  std::deque<std::function<void()>> work_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace diffattn::serve
