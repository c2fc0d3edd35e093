// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/terminal/text_table.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "apps/diffattn/terminal/terminal.h"

namespace diffattn::app {
namespace {

std::size_t longest(const std::vector<std::string>& texts) {
  std::size_t most = 0;
  for (const std::string& text : texts) most = std::max(most, text.size());
  return most;
}

/// What stands in a line of the table, of `heads` lines of names and those of the cells.
std::string cell_of(const TextTable::Column& column, std::size_t line, std::size_t heads) {
  if (line >= heads) return column.cells[line - heads];
  const std::size_t below = heads - line;  // this line and those of the names below it
  return below > column.heading.size() ? "" : column.heading[column.heading.size() - below];
}

}  // namespace

void print_table(const TextTable& table, std::size_t width, std::size_t gap) {
  const auto room = static_cast<std::size_t>(
      terminal_columns(STDOUT_FILENO).value_or(std::numeric_limits<int64_t>::max()));
  const std::size_t front = longest(table.lines), ends = front + longest(table.marks);
  std::size_t heads = 1;
  for (const TextTable::Column& column : table.columns) {
    heads = std::max(heads, column.heading.size());
  }
  const auto width_of = [&](const TextTable::Column& column) {
    return std::max({width, longest(column.heading), longest(column.cells)});
  };
  for (std::size_t first = 0, end = 0; first < table.columns.size(); first = end) {
    std::size_t taken = ends;
    while (end < table.columns.size() &&
           (end == first || taken + gap + width_of(table.columns[end]) <= room)) {
      taken += gap + width_of(table.columns[end++]);
    }
    if (first > 0) fmt::print("\n");
    for (std::size_t line = 0; line < heads - 1 + table.lines.size(); ++line) {
      const bool above = line + 1 < heads;  // of a name's last line
      std::string text = above ? std::string(front, ' ') : table.lines[line + 1 - heads];
      for (std::size_t i = first; i < end; ++i) {
        const TextTable::Column& column = table.columns[i];
        text += fmt::format("{:{}}{:>{}}", "", gap, cell_of(column, line, heads), width_of(column));
      }
      if (!above) text += table.marks[line + 1 - heads];
      fmt::print("{}\n", text.substr(0, text.find_last_not_of(' ') + 1));
    }
  }
}

std::vector<std::string> statistic_heading(const std::string& key) {
  if (key == "sparsity") return {"sparse"};
  if (key == "noise_cancelled") return {"noise", "cancel"};
  if (key == "similarity") return {"similar"};
  std::vector<std::string> lines;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = key.find('_', begin);
    lines.push_back(key.substr(begin, end - begin));
  }
  return lines;
}

}  // namespace diffattn::app
