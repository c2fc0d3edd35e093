// SPDX-License-Identifier: Apache-2.0
#include "diffattn/analysis/statistics.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace diffattn::analysis {
namespace {

// The shortest text that reads back as the same double.
std::string shortest(double value) {
  if (!std::isfinite(value)) return "";
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value);
  return {text, end.ptr};
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

}  // namespace

std::string to_csv(const StatisticsTable& table) {
  std::string out = "layer,head";
  for (const Statistic& name : table.names) out.append(",").append(csv_field(name.key));
  out += "\r\n";
  for (const StatisticsTable::Row& row : table.rows) {
    out.append(std::to_string(row.layer)).append(",").append(std::to_string(row.head));
    for (const double value : row.values) out.append(",").append(shortest(value));
    out += "\r\n";
  }
  return out;
}

std::string to_json(const StatisticsTable& table) {
  using nlohmann::json;
  json rows = json::array();
  for (const StatisticsTable::Row& row : table.rows) {
    json entry = {{"layer", row.layer}, {"head", row.head}};
    for (std::size_t i = 0; i < table.names.size() && i < row.values.size(); ++i) {
      const double value = row.values[i];
      entry[table.names[i].key] = std::isfinite(value) ? json(value) : json(nullptr);
    }
    rows.push_back(std::move(entry));
  }
  return rows.dump(2, ' ', false, json::error_handler_t::replace);
}

}  // namespace diffattn::analysis
