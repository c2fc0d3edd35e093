// SPDX-License-Identifier: Apache-2.0
#include "analysis/report/grid.h"

#include <cmath>

namespace diffattn::analysis {

Grid keep_extremes(std::span<const float> values, int64_t rows, int64_t columns, int64_t factor) {
  Grid out{(rows + factor - 1) / factor, (columns + factor - 1) / factor, {}};
  out.values.assign(static_cast<size_t>(out.rows * out.columns), 0.0f);
  for (int64_t row = 0; row < rows; ++row) {
    const float* in = values.data() + row * columns;
    float* cells = out.values.data() + row / factor * out.columns;
    for (int64_t column = 0; column < columns; ++column) {
      float& cell = cells[column / factor];
      if (std::fabs(in[column]) > std::fabs(cell)) cell = in[column];
    }
  }
  return out;
}

}  // namespace diffattn::analysis
