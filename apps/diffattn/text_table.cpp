// SPDX-License-Identifier: Apache-2.0
#include "text_table.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "terminal.h"

namespace diffattn::app {
namespace {

std::size_t longest(const std::vector<std::string>& texts) {
  std::size_t most = 0;
  for (const std::string& text : texts) most = std::max(most, text.size());
  return most;
}

}  // namespace

void print_table(const TextTable& table, std::size_t width, std::size_t gap) {
  const auto room = static_cast<std::size_t>(
      terminal_columns(STDOUT_FILENO).value_or(std::numeric_limits<int64_t>::max()));
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
