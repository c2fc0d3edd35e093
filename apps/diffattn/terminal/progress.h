// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace diffattn::app {

/// A bar with rate and time left on a terminal, cut to its width; nothing elsewhere (pipes,
/// TERM=dumb). Writes to standard error, so that results on standard output stay clean.
class Progress {
 public:
  /// `done` of the `total` steps lie behind already.
  Progress(std::string name, int64_t total, int64_t done = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// One step done; `what` says what comes next.
  void step(const std::string& what);
  /// Takes the bar away, so that something else can be printed; the next step shows it again.
  void clear();
  /// Whether there is a bar.
  bool shown() const { return shown_; }

 private:
  void draw(const std::string& what);

  std::string name_;
  int64_t total_, done_, first_;  // first_: where this process began
  bool shown_;
  std::chrono::steady_clock::time_point start_;
};

/// A bar in per cent of work whose size is known in other units.
class PercentBar {
 public:
  explicit PercentBar(std::string name) : bar_(std::move(name), 100) {}
  void show(uint64_t done, uint64_t total);
  void clear() { bar_.clear(); }

 private:
  Progress bar_;
  uint64_t shown_ = 0;
};

}  // namespace diffattn::app
