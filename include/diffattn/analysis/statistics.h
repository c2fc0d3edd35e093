// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace diffattn::analysis {

/// The names of a statistic in tables and menus.
struct Statistic {
  std::string key;          // "negative_mass": the name in JSON and CSV
  std::string label;        // "negative mass"
  std::string description;  // one sentence
};

/// A table with one row of numbers per layer and head.
struct StatisticsTable {
  struct Row {
    int64_t layer = 0;
    int64_t head = 0;
    std::vector<double> values;  // one per name; NaN if the statistic does not apply
  };
  std::vector<Statistic> names;
  std::vector<Row> rows;
};

/// Returns the statistics of a head over the visible entries A of its map: sparsity, focus,
/// mean_abs, negative_mass, entropy, sink_mass, row_max, noise_cancelled, lambda, similarity.
const std::vector<Statistic>& attention_statistics();

/// Returns CSV (RFC 4180) with a header line `layer,head,<key>...`. Numbers have up to 17
/// significant digits and read back exactly; a number that is not finite is an empty field.
std::string to_csv(const StatisticsTable& table);

/// Returns CSV of several tables with the same statistics; the first column is `model`.
std::string to_csv(const std::vector<std::pair<std::string, StatisticsTable>>& tables);

/// Returns `[{"layer": 0, "head": 0, "<key>": 0.5, ...}, ...]`; a number that is not finite is
/// null.
std::string to_json(const StatisticsTable& table);

}  // namespace diffattn::analysis
