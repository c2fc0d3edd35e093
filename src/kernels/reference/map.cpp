// SPDX-License-Identifier: Apache-2.0
//
// The maps p1, p2 and A = p1 - lambda p2 (steps (1)-(3) of docs/algorithm.md), downsampled to a
// grid of cells [B, H, 3, rows, cols]. Each cell shows its entry of largest magnitude. Rows are
// computed in double, one at a time, so memory is one row of the maps besides the grid.

#include <algorithm>

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/reference.h"
#include "kernels/reference/maps.h"

namespace diffattn::reference {
namespace {

constexpr int64_t kMaps = 3;  // p1, p2, A

template <class T>
struct Map {
  using A = Accumulator<T>;
  const MapParams& params;

  void run() {
    for (int64_t b = 0; b < params.batch; ++b) {
      for (int64_t h = 0; h < params.heads; ++h) run_head(b, h);
    }
  }

  void run_head(int64_t b, int64_t h) {
    const int64_t cells = params.rows * params.cols;
    A* grid = static_cast<A*>(params.map) + (b * params.heads + h) * kMaps * cells;
    std::fill(grid, grid + kMaps * cells, A{0});
    HeadMaps<T> maps(params, b, h);
    const int64_t row_end = std::min(params.row_end, maps.seq.seq_q);  // packed: may be shorter
    for (int64_t m = params.row_begin; m < row_end; ++m) {
      maps.compute_row(m);
      const int64_t r = cell(m, params.row_begin, params.row_end, params.rows);
      const int64_t begin = std::max(params.col_begin, maps.columns.begin);
      const int64_t end = std::min(params.col_end, maps.columns.end);
      for (int64_t n = begin; n < end; ++n) {
        A* at = grid + r * params.cols + cell(n, params.col_begin, params.col_end, params.cols);
        keep_extreme(at[0], maps.p1[n]);
        keep_extreme(at[cells], maps.p2[n]);
        keep_extreme(at[2 * cells], maps.difference(n));
      }
    }
  }

  /// Returns which of `cells` equal parts of [begin, end) contains i.
  static int64_t cell(int64_t i, int64_t begin, int64_t end, int64_t cells) {
    return (i - begin) * cells / (end - begin);
  }

  /// Keeps the value of larger magnitude in `cell`. NaN always wins, so that a map shows it.
  static void keep_extreme(A& cell, double value) {
    if (std::isnan(value) || std::abs(value) > std::abs(static_cast<double>(cell))) {
      cell = static_cast<A>(value);
    }
  }
};

}  // namespace

void map(const MapParams& params) {
  validate(params, /*host_arrays=*/true);
  with_dtype(params.dtype, [&]<class T>() { Map<T>{params}.run(); });
}

}  // namespace diffattn::reference
