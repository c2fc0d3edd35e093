// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace diffattn::analysis {

/// A statistic as tables and menus show it.
struct Statistic {
  std::string key;          // "negative_mass": the name in JSON and CSV
  std::string label;        // "negative mass"
  std::string description;  // one sentence
};

/// One line of numbers per layer and head.
struct StatisticsTable {
  struct Row {
    int64_t layer = 0;
    int64_t head = 0;
    std::vector<double> values;  // one per name; NaN where a statistic does not apply
  };
  std::vector<Statistic> names;
  std::vector<Row> rows;
};

/// What is known about every head, over the entries A of its map that rows may see: sparsity,
/// focus, mean_abs, negative_mass, entropy, sink_mass, row_max, noise_cancelled, lambda,
/// similarity.
const std::vector<Statistic>& attention_statistics();

/// RFC 4180 with a header line `layer,head,<key>...`; numbers with 17 significant digits at most,
/// read back exactly; an empty field for a number that is not finite.
std::string to_csv(const StatisticsTable& table);

/// The same of several tables with the same statistics, with a column `model` in front.
std::string to_csv(const std::vector<std::pair<std::string, StatisticsTable>>& tables);

/// `[{"layer": 0, "head": 0, "<key>": 0.5, ...}, ...]`; null for a number that is not finite.
std::string to_json(const StatisticsTable& table);

}  // namespace diffattn::analysis
