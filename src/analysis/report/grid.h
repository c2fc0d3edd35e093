// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace diffattn::analysis {

/// A row-major map that owns its entries.
struct Grid {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<float> values;

  float at(int64_t row, int64_t column) const {
    return values[static_cast<std::size_t>(row * columns + column)];
  }
};

/// Every factor x factor block of [rows, columns] becomes one cell with the block's entry of
/// largest magnitude (the first one of equal ones, row by row), so that a lone negative entry
/// among thousands is still there. Blocks at the right and lower edge may be smaller.
Grid keep_extremes(std::span<const float> values, int64_t rows, int64_t columns, int64_t factor);

}  // namespace diffattn::analysis
