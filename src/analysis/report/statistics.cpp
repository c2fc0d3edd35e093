// SPDX-License-Identifier: Apache-2.0
#include "diffattn/analysis/report.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace diffattn::analysis {
namespace {

// Returns the shortest text that reads back as the same double.
std::string shortest(double value) {
  if (!std::isfinite(value)) return "";
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value);
  return {text, end.ptr};
}

std::string csv_field(const std::string& given) {
  // Spreadsheets would run text that starts with = + - or @ as a formula.
  const bool formula = given.find_first_of("=+-@\t\r") == 0;
  std::string text = formula ? "'" + given : given;
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

std::string csv_head(const StatisticsTable& table) {
  std::string out = "layer,head";
  for (const Statistic& name : table.names) out.append(",").append(csv_field(name.key));
  return out;
}

std::string csv_line(const StatisticsTable::Row& row) {
  std::string out = std::to_string(row.layer) + "," + std::to_string(row.head);
  for (const double value : row.values) out.append(",").append(shortest(value));
  return out;
}

}  // namespace

const std::vector<Statistic>& attention_statistics() {
  static const std::vector<Statistic> names = {
      {"sparsity", "sparsity", "Share of the entries with |A| < 0.001."},
      {"focus", "focus", "Share of the entries with |A| > 1/2."},
      {"mean_abs", "mean |A|", "Mean magnitude of the entries."},
      {"negative_mass", "negative mass",
       "Sum of max(\u2212A, 0) over a row: the weight below zero."},
      {"entropy", "entropy",
       "\u2212\u03a3 a log a with a = |A| / \u03a3|A|: low if a row attends to few tokens."},
      {"sink_mass", "sink mass", "A at the first token that a row may see."},
      {"row_max", "row maximum", "Largest entry of a row."},
      {"noise_cancelled", "noise cancelled",
       "\u03a3 min(p1, \u03bb p2): the weight of map 1 that map 2 cancels."},
      {"lambda", "\u03bb", "The factor of map 2, mean over the tokens."},
      {"similarity", "similarity",
       "\u03a3 min(p1, p2): the overlap of the two maps, 1 if they are equal."}};
  return names;
}

std::string to_csv(const StatisticsTable& table) {
  std::string out = csv_head(table) + "\r\n";
  for (const StatisticsTable::Row& row : table.rows) out += csv_line(row) + "\r\n";
  return out;
}

std::string to_csv(const std::vector<std::pair<std::string, StatisticsTable>>& tables) {
  if (tables.empty()) return "";
  std::string out = "model," + csv_head(tables.front().second) + "\r\n";
  for (const auto& [name, table] : tables) {
    for (const StatisticsTable::Row& row : table.rows) {
      out.append(csv_field(name)).append(",").append(csv_line(row)).append("\r\n");
    }
  }
  return out;
}

std::string to_json(const StatisticsTable& table) {
  using nlohmann::json;
  json rows = json::array();
  for (const StatisticsTable::Row& row : table.rows) {
    json entry = {{"layer", row.layer}, {"head", row.head}};
    for (size_t i = 0; i < table.names.size() && i < row.values.size(); ++i) {
      const double value = row.values[i];
      entry[table.names[i].key] = std::isfinite(value) ? json(value) : json(nullptr);
    }
    rows.push_back(std::move(entry));
  }
  return rows.dump(2, ' ', false, json::error_handler_t::replace);
}

}  // namespace diffattn::analysis
