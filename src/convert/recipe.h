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

inline constexpr std::int64_t kNone = -1;

/// How one tensor of the result comes from one of the source: rows and columns chosen, columns
/// multiplied. A tensor with one dimension has rows of one number.
struct Recipe {
  std::string source;                 // actual name in the file; empty: all rows come from `fill`
  std::vector<std::int64_t> rows;     // of the source, per output row; kNone: from `fill`
  std::vector<std::int64_t> columns;  // of the source, per output column; kNone: 0
  std::vector<double> factors;        // per output column
  /// Sets a row that no row of the source goes to. Without it such rows are 0.
  std::function<void(std::int64_t, std::span<double>)> fill;

  /// The bytes go over as they are.
  bool is_copy() const {
    return !source.empty() && rows.empty() && columns.empty() && factors.empty();
  }
};

struct Output {
  TensorReport report;
  Recipe recipe;
};

/// Makes the tensor and writes it. Besides the source's tensor a block of 16 MiB is in memory.
/// Throws io::Error when a number leaves the range of its type.
void run_recipe(const io::TensorSource& source, const Output& output, io::ShardedWriter& writer);

/// [0, n)
std::vector<std::int64_t> first_rows(std::int64_t n);

/// Two sub-heads make a differential head j < pairs; s says which. Where its rows are.
enum class HeadOrder {
  kStripes,  // sub-head 2j + s
  kHalves,   // sub-head s pairs + j
};
enum class RotaryOrder {
  kHalfSplit,    // features i and i + d / 2 turn together
  kInterleaved,  // features 2i and 2i + 1
};

struct RowOrder {
  HeadOrder heads = HeadOrder::kStripes;
  RotaryOrder rotary = RotaryOrder::kHalfSplit;
};

/// Row of a sub-head (width d) where the feature stands that half-split order has at i.
std::int64_t rotary_row(RotaryOrder order, std::int64_t i, std::int64_t d);
std::int64_t sub_head(HeadOrder order, std::int64_t j, std::int64_t s, std::int64_t pairs);

/// For each row of a projection in order `to` with `pairs` heads of 2 d rows: the row of the source
/// in rotary order `from`, in which head j's sub-head s is `source_sub_head(j, s)`.
std::vector<std::int64_t> rows_between(
    const RowOrder& to, RotaryOrder from, std::int64_t pairs, std::int64_t d,
    const std::function<std::int64_t(std::int64_t j, std::int64_t s)>& source_sub_head);

}  // namespace diffattn::convert
