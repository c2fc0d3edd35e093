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
    return values[static_cast<size_t>(row * columns + column)];
  }
};

/// Downsamples a map [rows, columns]: each factor x factor block becomes one cell with the entry of
/// largest magnitude, the first one in row order if several are equal. A single negative entry
/// among thousands thus stays visible. Blocks at the right and lower edges may be smaller.
Grid keep_extremes(std::span<const float> values, int64_t rows, int64_t columns, int64_t factor);

}  // namespace diffattn::analysis
