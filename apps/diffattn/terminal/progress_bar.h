// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace diffattn::app {

/// A bar with rate and time left that fits the terminal. It writes to standard error, so that
/// standard output holds results only, and stays silent on pipes and with TERM=dumb.
class ProgressBar {
 public:
  /// A resumed run starts with `done` of the `total` steps.
  ProgressBar(std::string name, int64_t total, int64_t done = 0);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Counts one step and redraws the bar with `text` behind it. Two spaces separate the fields of
  /// `text`. A narrow terminal shows the first ones only, each of them whole.
  void step(const std::string& text);
  /// Counts steps that an earlier process has done, which say nothing about the rate.
  void skip(int64_t steps);
  /// Erases the bar before other output; the next step draws it again.
  void clear();
  /// Leaves the bar as it is and continues on the next line.
  void end_line();
  /// True if standard error is a terminal, so that there is a bar.
  bool shown() const { return shown_; }

 private:
  void draw(const std::string& text);

  std::string name_;
  int64_t total_, done_, first_;  // first_: steps done before this process started
  bool shown_;
  std::chrono::steady_clock::time_point start_;
};

/// A bar of 100 steps for work that is counted in other units, bytes say.
class PercentBar {
 public:
  explicit PercentBar(std::string name) : bar_(std::move(name), 100) {}
  void show(uint64_t done, uint64_t total);
  void clear() { bar_.clear(); }

 private:
  ProgressBar bar_;
  uint64_t shown_ = 0;
};

}  // namespace diffattn::app
