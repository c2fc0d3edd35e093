// SPDX-License-Identifier: Apache-2.0
#include "text_table.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

namespace diffattn::app {
namespace {

/// Of the terminal that standard output is; without bound where it is none.
std::size_t columns_of_output() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : std::numeric_limits<std::size_t>::max();
}

std::size_t longest(const std::vector<std::string>& texts) {
  std::size_t most = 0;
  for (const std::string& text : texts) most = std::max(most, text.size());
  return most;
}

}  // namespace

void print_table(const TextTable& table, std::size_t width, std::size_t gap) {
  const std::size_t room = columns_of_output();
  const std::size_t ends = longest(table.lines) + longest(table.marks);
  const auto width_of = [&](const TextTable::Column& column) {
    return std::max({width, column.name.size(), longest(column.cells)});
  };
  for (std::size_t first = 0, end = 0; first < table.columns.size(); first = end) {
    std::size_t taken = ends;
    while (end < table.columns.size() &&
           (end == first || taken + gap + width_of(table.columns[end]) <= room)) {
      taken += gap + width_of(table.columns[end++]);
    }
    if (first > 0) fmt::print("\n");
    for (std::size_t line = 0; line < table.lines.size(); ++line) {
      std::string text = table.lines[line];
      for (std::size_t i = first; i < end; ++i) {
        const TextTable::Column& column = table.columns[i];
        text += fmt::format("{:{}}{:>{}}", "", gap,
                            line == 0 ? column.name : column.cells[line - 1], width_of(column));
      }
      fmt::print("{}{}\n", text, table.marks[line]);
    }
  }
}

}  // namespace diffattn::app
