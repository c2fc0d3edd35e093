// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace diffattn::app {

/// A table with many columns of numbers.
struct TextTable {
  struct Column {
    std::vector<std::string> heading;  // lines below each other
    std::vector<std::string> cells;
  };
  std::vector<std::string> lines;  // how each line begins, the names' last first; equally wide
  std::vector<std::string> marks;  // how each ends
  std::vector<Column> columns;
};

/// Prints it to standard output, columns as wide as they need and at least `width`, `gap` blanks
/// between them. On a terminal that is too narrow the columns stand in blocks below each other.
void print_table(const TextTable& table, std::size_t width, std::size_t gap);

/// The name of a statistic of attention above its column, in lines: short enough for all of them in
/// 100 columns.
std::vector<std::string> statistic_heading(const std::string& key);

}  // namespace diffattn::app
