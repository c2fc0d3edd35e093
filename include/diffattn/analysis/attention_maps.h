// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "diffattn/analysis/attention_statistics.h"
#include "diffattn/analysis/report.h"

// Maps of the first sequence of a batch. Packed sequences are for statistics alone.

namespace diffattn::analysis {

/// Row m may see columns [begin[m], end[m]); both empty: all of them. A mask with holes counts from
/// its first to its last column.
struct VisibleColumns {
  std::vector<int64_t> begin, end;  // [M]
};
VisibleColumns visible_columns(const nn::HeadTensors& call);

/// The maps of one head, row by row in blocks, so that beside the result no more than a few rows
/// exist. `difference` is left to whoever shows them: p1 - lambda p2. `layer` and `head` are set.
HeadMaps head_maps(const LayerCalls& calls, int64_t layer, int64_t head);

/// Columns [begin, end).
struct ColumnRange {
  int64_t begin = 0;
  int64_t end = 0;
};

/// What one row of every head gives to those columns: the sum of A there, [H].
std::vector<double> mass_on(const nn::HeadTensors& call, int64_t row,
                            const std::vector<ColumnRange>& columns);

}  // namespace diffattn::analysis
