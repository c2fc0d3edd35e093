// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/terminal/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "apps/diffattn/terminal/terminal.h"

namespace diffattn::app {
namespace {

constexpr int64_t kWidth = 24, kSmallestWidth = 8;  // of the bar, in columns

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60)
                   : fmt::format("{}:{:02}", minutes, whole % 60);
}

/// The first of these that is set counts, as for the C library.
bool is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string_view value = variable(name);
    if (value.empty()) continue;
    return value.find("UTF-8") != std::string_view::npos ||
           value.find("utf8") != std::string_view::npos;
  }
  return false;
}

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }

int64_t columns_of(std::string_view text) { return std::ranges::count_if(text, begins_character); }

/// The beginning of `text`, at most `columns` characters of it.
std::string cut(std::string text, int64_t columns) {
  size_t end = 0;
  for (; end < text.size(); ++end) {
    if (begins_character(text[end]) && --columns < 0) break;
  }
  text.resize(end);
  return text;
}

}  // namespace

Progress::Progress(std::string name, int64_t total, int64_t done)
    : name_(std::move(name)),
      total_(std::max<int64_t>(total, 1)),
      done_(std::min(done, total_)),
      first_(done_),
      shown_(is_terminal(STDERR_FILENO)),
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
  static const bool utf8 = is_utf8();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double rate = seconds > 0.0 ? static_cast<double>(done_ - first_) / seconds : 0.0;
  const std::string left =
      done_ == first_ ? "-" : clock_text(static_cast<double>(total_ - done_) / rate);
  const std::string text =
      fmt::format(" {}/{}  {:.1f}/s  {} left  {}", done_, total_, rate, left, what);
  // A line that wraps could not be taken away: the bar gives way first, then the end of the text.
  const int64_t columns = terminal_columns(STDERR_FILENO).value_or(80) - 1;
  const int64_t room = columns - columns_of(name_) - 1 - columns_of(text);
  const int64_t width = std::clamp(room, kSmallestWidth, kWidth);
  std::string bar;
  for (int64_t i = 0; i < width; ++i) {
    const bool filled = i < width * done_ / total_;
    bar += utf8 ? (filled ? "█" : "░") : (filled ? "#" : ".");
  }
  fmt::print(stderr, "\r\033[K{}", cut(fmt::format("{} {}{}", name_, bar, text), columns));
  std::fflush(stderr);
}

void PercentBar::show(uint64_t done, uint64_t total) {
  for (; total > 0 && shown_ < done * 100 / total; ++shown_) bar_.step("");
}

}  // namespace diffattn::app
