// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>

namespace diffattn::app {
namespace {

constexpr int kWidth = 24;

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(std::string name, int64_t total)
    : name_(std::move(name)),
      total_(std::max<int64_t>(total, 1)),
      shown_(isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()) {
  draw("");
}

Progress::~Progress() { clear(); }

void Progress::step(const std::string& what) {
  done_ = std::min(done_ + 1, total_);
  draw(what);
}

void Progress::clear() {
  if (shown_) fmt::print(stderr, "\r\033[K");
}

void Progress::draw(const std::string& what) {
  if (!shown_) return;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double rate = seconds > 0.0 ? static_cast<double>(done_) / seconds : 0.0;
  const auto filled = static_cast<int>(kWidth * done_ / total_);
  std::string bar;
  for (int i = 0; i < kWidth; ++i) bar += i < filled ? "█" : "░";
  const std::string left =
      done_ == 0 ? "–" : clock_text(static_cast<double>(total_ - done_) / rate);
  fmt::print(stderr, "\r\033[K{} {} {}/{}  {:.1f}/s  {} left  {}", name_, bar, done_, total_, rate,
             left, what);
  std::fflush(stderr);
}

}  // namespace diffattn::app
