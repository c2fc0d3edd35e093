// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "diffattn/analysis/attention_statistics.h"
#include "diffattn/analysis/report.h"

// These functions return maps of the first sequence of a batch. They throw diffattn::Error
// for packed sequences, which only have statistics.

namespace diffattn::analysis {

/// The columns [begin[m], end[m]) that row m may see; both empty if every row sees all columns. For
/// a mask with holes, the range goes from its first to its last visible column.
struct VisibleColumns {
  std::vector<int64_t> begin, end;  // [M]
};
VisibleColumns visible_columns(const nn::HeadTensors& call);

/// Computes the maps of one head in blocks of rows, so that little memory is needed besides the
/// result. Sets `layer` and `head`; leaves `difference` empty, which means p1 - lambda p2.
HeadMaps head_maps(const LayerCalls& calls, int64_t layer, int64_t head);

/// Columns [begin, end).
struct ColumnRange {
  int64_t begin = 0;
  int64_t end = 0;
};

/// Returns the sum of A over the given columns of one row, for every head: [H].
std::vector<double> mass_on(const nn::HeadTensors& call, int64_t row,
                            const std::vector<ColumnRange>& columns);

}  // namespace diffattn::analysis
