// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "diffattn/convert/convert.h"
#include "io/safetensors/sharded.h"

namespace diffattn::convert {

inline constexpr int64_t kNone = -1;

/// Describes how to make one tensor of the result from one of the source: select rows and columns,
/// multiply columns by factors. A tensor with one dimension counts as a matrix of one column.
struct Recipe {
  std::string source;            // actual name in the file; empty: `fill` makes all rows
  std::vector<int64_t> rows;     // source row of each output row; kNone: `fill` makes it
  std::vector<int64_t> columns;  // source column of each output column; kNone: 0
  std::vector<double> factors;   // factor of each output column
  /// Fills an output row that has no source row. Without `fill`, such rows are 0.
  std::function<void(int64_t, std::span<double>)> fill;

  /// True if the output has the same bytes as the source tensor.
  bool is_copy() const {
    return !source.empty() && rows.empty() && columns.empty() && factors.empty();
  }
};

struct Output {
  TensorReport report;
  Recipe recipe;
};

/// Makes a tensor and writes it. Uses memory for the source tensor and a block of 16 MiB. Throws
/// io::Error if a number exceeds the range of its dtype.
void run_recipe(const io::TensorSource& source, const Output& output, io::ShardedWriter& writer);

/// Returns the rows [0, n).
std::vector<int64_t> first_rows(int64_t n);

/// The order of sub-heads. Differential head j < pairs has two sub-heads s = 0, 1, one per map.
enum class HeadOrder {
  kStripes,  // sub-head 2j + s
  kHalves,   // sub-head s pairs + j
};
enum class RotaryOrder {
  kHalfSplit,    // rotates features i and i + d / 2 together
  kInterleaved,  // rotates features 2i and 2i + 1 together
};

struct RowOrder {
  HeadOrder heads = HeadOrder::kStripes;
  RotaryOrder rotary = RotaryOrder::kHalfSplit;
};

/// Returns the row, in a sub-head of width d, of the feature that is row i in half-split order.
int64_t rotary_row(RotaryOrder order, int64_t i, int64_t d);
int64_t sub_head(HeadOrder order, int64_t j, int64_t s, int64_t pairs);

/// Returns the source row for each row of a projection in order `to` with `pairs` heads of 2 d
/// rows. The source has rotary order `from` and keeps sub-head s of head j at `source_sub_head(j,
/// s)`.
std::vector<int64_t> rows_between(
    const RowOrder& to, RotaryOrder from, int64_t pairs, int64_t d,
    const std::function<int64_t(int64_t j, int64_t s)>& source_sub_head);

}  // namespace diffattn::convert
