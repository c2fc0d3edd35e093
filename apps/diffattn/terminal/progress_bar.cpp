// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/terminal/progress_bar.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "apps/diffattn/terminal/terminal.h"

namespace diffattn::app {
namespace {

constexpr int64_t kWidth = 24, kSmallestWidth = 8;  // columns of the bar

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60)
                   : fmt::format("{}:{:02}", minutes, whole % 60);
}

/// True if the locale is UTF-8. As in the C library, the first variable that is set decides.
bool is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string_view value = environment_variable(name);
    if (value.empty()) continue;
    return value.find("UTF-8") != std::string_view::npos ||
           value.find("utf8") != std::string_view::npos;
  }
  return false;
}

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }

int64_t columns_of(std::string_view text) { return std::ranges::count_if(text, begins_character); }

/// Returns the first `columns` characters of `text`.
std::string cut(std::string text, int64_t columns) {
  size_t end = 0;
  for (; end < text.size(); ++end) {
    if (begins_character(text[end]) && --columns < 0) break;
  }
  text.resize(end);
  return text;
}

constexpr std::string_view kBetween = "  ";  // two fields of a line

/// Appends the fields of `text`, which kBetween separates.
void add_fields(std::vector<std::string>& fields, std::string_view text) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(kBetween), text.size());
    if (end > 0) fields.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + kBetween.size(), text.size()));
  }
}

/// Joins the fields from the first on, as many as fit into `columns`. Never cuts a field.
std::string joined(const std::vector<std::string>& fields, int64_t columns) {
  std::string line;
  for (const std::string& field : fields) {
    const std::string_view between = line.empty() ? "" : kBetween;
    if (columns_of(line) + columns_of(between) + columns_of(field) > columns) break;
    line += between;
    line += field;
  }
  return line;
}

}  // namespace

ProgressBar::ProgressBar(std::string name, int64_t total, int64_t done)
    : name_(std::move(name)),
      total_(std::max<int64_t>(total, 1)),
      done_(std::min(done, total_)),
      first_(done_),
      shown_(is_terminal(STDERR_FILENO)),
      start_(std::chrono::steady_clock::now()) {
  draw("");
}

ProgressBar::~ProgressBar() { clear(); }

void ProgressBar::step(const std::string& text) {
  done_ = std::min(done_ + 1, total_);
  draw(text);
}

void ProgressBar::skip(int64_t steps) {
  steps = std::min(steps, total_ - done_);
  done_ += steps;
  first_ += steps;
  draw("");
}

void ProgressBar::clear() {
  if (shown_) fmt::print(stderr, "\r\033[K");
}

void ProgressBar::end_line() {
  if (shown_) fmt::print(stderr, "\n");
}

void ProgressBar::draw(const std::string& text) {
  if (!shown_) return;
  static const bool utf8 = is_utf8();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double rate = seconds > 0.0 ? static_cast<double>(done_ - first_) / seconds : 0.0;
  const std::string left =
      done_ == first_ ? "-" : clock_text(static_cast<double>(total_ - done_) / rate);
  std::vector<std::string> fields{fmt::format("{}/{}", done_, total_),
                                  fmt::format("{:.1f}/s", rate), fmt::format("{} left", left)};
  add_fields(fields, text);
  // We cannot erase a line that has wrapped, so we shorten the bar first, then leave fields out.
  const int64_t columns = terminal_columns(STDERR_FILENO).value_or(80) - 1;
  const int64_t before = columns_of(name_) + 2;  // the spaces around the bar
  const std::string behind = joined(fields, columns - before - kSmallestWidth);
  const int64_t width = std::clamp(columns - before - columns_of(behind), kSmallestWidth, kWidth);
  std::string bar;
  for (int64_t i = 0; i < width; ++i) {
    const bool filled = i < width * done_ / total_;
    bar += utf8 ? (filled ? "█" : "░") : (filled ? "#" : ".");
  }
  fmt::print(stderr, "\r\033[K{}", cut(fmt::format("{} {} {}", name_, bar, behind), columns));
  std::fflush(stderr);
}

void PercentBar::show(uint64_t done, uint64_t total) {
  for (; total > 0 && shown_ < done * 100 / total; ++shown_) bar_.step("");
}

}  // namespace diffattn::app
