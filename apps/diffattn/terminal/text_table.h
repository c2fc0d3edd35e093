// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace diffattn::app {

/// A table with a name on the left of each line and many columns of numbers.
struct TextTable {
  struct Column {
    std::vector<std::string> heading;  // lines from top to bottom
    std::vector<std::string> cells;    // one per line of the table
  };
  std::vector<std::string> lines;  // left ends: the heading's last line, then one per line of cells
  std::vector<std::string> marks;  // right ends, as many as `lines`
  std::vector<Column> columns;
};

/// Prints a table to standard output. Columns are as wide as their longest cell, at least `width`,
/// with `gap` blanks in front. A terminal that is too narrow gets the columns in several blocks.
void print_table(const TextTable& table, size_t width, size_t gap);

/// Returns the heading of a statistic of attention, split into lines so that all statistics fit
/// into 100 columns.
std::vector<std::string> statistic_heading(const std::string& key);

}  // namespace diffattn::app
