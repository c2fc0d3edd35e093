// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/terminal/text_table.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/terminal/terminal.h"

namespace diffattn::app {
namespace {

size_t longest(const std::vector<std::string>& texts) {
  size_t most = 0;
  for (const std::string& text : texts) most = std::max(most, text.size());
  return most;
}

size_t column_width(const TextTable::Column& column, size_t least) {
  return std::max({least, longest(column.heading), longest(column.cells)});
}

/// Returns the text of a column in one printed line; the first `heads` lines hold the heading.
std::string cell_text(const TextTable::Column& column, size_t line, size_t heads) {
  if (line >= heads) return column.cells[line - heads];
  const size_t from_bottom = heads - line;  // headings end on the last of these lines
  if (from_bottom > column.heading.size()) return "";
  return column.heading[column.heading.size() - from_bottom];
}

}  // namespace

void print_table(const TextTable& table, size_t width, size_t gap) {
  const auto room = static_cast<size_t>(
      terminal_columns(STDOUT_FILENO).value_or(std::numeric_limits<int64_t>::max()));
  const size_t front = longest(table.lines), ends = front + longest(table.marks);
  size_t heads = 1;
  for (const TextTable::Column& column : table.columns) {
    heads = std::max(heads, column.heading.size());
  }
  for (size_t first = 0, end = 0; first < table.columns.size(); first = end) {
    size_t taken = ends;
    for (; end < table.columns.size(); ++end) {
      const size_t more = gap + column_width(table.columns[end], width);
      if (end > first && taken + more > room) break;
      taken += more;
    }
    if (first > 0) print_out("\n");
    for (size_t line = 0; line < heads - 1 + table.lines.size(); ++line) {
      const bool above = line + 1 < heads;  // `lines` and `marks` start at the heading's last line
      std::string text = above ? "" : table.lines[line + 1 - heads];
      text.resize(front, ' ');
      for (size_t i = first; i < end; ++i) {
        const TextTable::Column& column = table.columns[i];
        text += fmt::format("{:{}}{:>{}}", "", gap, cell_text(column, line, heads),
                            column_width(column, width));
      }
      if (!above) text += table.marks[line + 1 - heads];
      print_out("{}\n", text.substr(0, text.find_last_not_of(' ') + 1));
    }
  }
}

std::vector<std::string> statistic_heading(const std::string& key) {
  if (key == "sparsity") return {"sparse"};
  if (key == "noise_cancelled") return {"noise", "cancel"};
  if (key == "similarity") return {"similar"};
  std::vector<std::string> lines;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = key.find('_', begin);
    lines.push_back(key.substr(begin, end - begin));
  }
  return lines;
}

}  // namespace diffattn::app
