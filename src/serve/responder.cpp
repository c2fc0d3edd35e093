// SPDX-License-Identifier: Apache-2.0
#include "serve/responder.h"

#include <utility>

namespace diffattn::serve {
namespace {

/// Gives an event to an answer. An answer that finds no memory ends with an error.
bool take(Answer& answer, const Event& event) {
  try {
    return answer.take(event);
  } catch (const std::exception&) {
    answer.fail_now();
    return true;
  }
}

}  // namespace

Responder::Responder() : thread_([this] { run(); }) {}

Responder::~Responder() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  news_.notify_one();
  thread_.join();
}

void Responder::add(uint64_t job, std::shared_ptr<Answer> answer) {
  const std::lock_guard lock(mutex_);
  answers_.emplace(job, std::move(answer));
}

void Responder::forget(uint64_t job) {
  const std::lock_guard lock(mutex_);
  answers_.erase(job);
}

void Responder::push(std::vector<Event>&& events) {
  if (events.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(events));
  }
  news_.notify_one();
}

void Responder::run_soon(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  news_.notify_one();
}

size_t Responder::open() const {
  const std::lock_guard lock(mutex_);
  return answers_.size();
}

void Responder::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    news_.wait(lock, [&] { return stopping_ || !events_.empty() || !work_.empty(); });
    while (!work_.empty()) {
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
    if (events_.empty() && stopping_) return;
    if (events_.empty()) continue;
    const std::vector<Event> events = std::move(events_.front());
    events_.pop_front();
    for (const Event& event : events) {
      const auto at = answers_.find(event.job);
      if (at == answers_.end()) continue;  // its client has gone
      const std::shared_ptr<Answer> answer = at->second;
      lock.unlock();  // an answer may wait for locks of its connection
      const bool complete = take(*answer, event);
      lock.lock();
      if (complete) answers_.erase(event.job);
    }
  }
}

}  // namespace diffattn::serve
