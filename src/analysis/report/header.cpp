// SPDX-License-Identifier: Apache-2.0
#include "analysis/report/header.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace diffattn::analysis {
namespace {

using nlohmann::json;

// JSON has no NaN and no infinity.
json number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

json numbers(const std::vector<double>& values) {
  json out = json::array();
  for (const double value : values) out.push_back(number(value));
  return out;
}

json json_of(const Sequence& sequence) {
  json out = {{"name", sequence.name}, {"rows", sequence.rows}, {"regions", json::array()}};
  if (!sequence.columns.empty()) out["columns"] = sequence.columns;
  if (!sequence.visible_begin.empty()) {
    out["visible"] = {{"begin", sequence.visible_begin}, {"end", sequence.visible_end}};
  }
  if (sequence.question) out["question"] = *sequence.question;
  for (const Region& region : sequence.regions) {
    out["regions"].push_back({{"name", region.name},
                              {"kind", region.kind},
                              {"begin", region.begin},
                              {"end", region.end}});
  }
  return out;
}

json json_of(const LambdaLayer& layer) {
  json heads = json::array();
  for (const LambdaValue& value : layer.heads) {
    heads.push_back({number(value.mean), number(value.min), number(value.max)});
  }
  return {{"layer", layer.layer},
          {"init", layer.init ? number(*layer.init) : json(nullptr)},
          {"heads", std::move(heads)}};
}

json json_of(const StatisticsTable& table) {
  json names = json::array();
  for (const Statistic& name : table.names) {
    names.push_back({{"key", name.key}, {"label", name.label}, {"description", name.description}});
  }
  json rows = json::array();
  for (const StatisticsTable::Row& row : table.rows) {
    rows.push_back({{"layer", row.layer}, {"head", row.head}, {"values", numbers(row.values)}});
  }
  return {{"names", std::move(names)}, {"rows", std::move(rows)}};
}

json json_of(const ReportModel& model) {
  json lambda = json::array();
  for (const LambdaLayer& layer : model.lambda) lambda.push_back(json_of(layer));
  return {{"name", model.name},     {"description", model.description},
          {"layers", model.layers}, {"heads", model.heads},
          {"lambda", lambda},       {"statistics", json_of(model.statistics)}};
}

json json_of(const Curves& curves) {
  json series = json::array();
  for (const Series& one : curves.series) {
    json entry = {{"name", one.name}, {"x", numbers(one.x)}, {"y", numbers(one.y)}};
    if (!one.low.empty()) {
      entry["low"] = numbers(one.low);
      entry["high"] = numbers(one.high);
    }
    series.push_back(std::move(entry));
  }
  return {{"name", curves.name},        {"note", curves.note},  {"xLabel", curves.x_label},
          {"yLabel", curves.y_label},   {"logX", curves.log_x}, {"logY", curves.log_y},
          {"series", std::move(series)}};
}

json json_of(const Table& table) {
  json columns = json::array();
  for (const TableColumn& column : table.columns) {
    const char* better = column.better == TableColumn::Better::kHigher  ? "higher"
                         : column.better == TableColumn::Better::kLower ? "lower"
                                                                        : "neither";
    columns.push_back({{"label", column.label},
                       {"number", column.number},
                       {"digits", column.digits},
                       {"better", better}});
  }
  json rows = json::array();
  for (const auto& row : table.rows) {
    json cells = json::array();
    for (const auto& cell : row) {
      const auto* value = std::get_if<double>(&cell);
      cells.push_back(value ? number(*value) : json(std::get<std::string>(cell)));
    }
    rows.push_back(std::move(cells));
  }
  return {{"name", table.name},
          {"note", table.note},
          {"columns", std::move(columns)},
          {"rows", std::move(rows)}};
}

json json_of(const ReadExample& example) {
  json lines = json::array();
  for (const ReadExample::Line& line : example.lines) {
    json words = json::array();
    for (const MarkedWord& word : line.words) words.push_back({word.text, word.mark});
    lines.push_back({{"label", line.label}, {"words", std::move(words)}});
  }
  return {{"name", example.name}, {"note", example.note}, {"lines", std::move(lines)}};
}

json json_of(const NextCommand& next) {
  return {{"purpose", next.purpose}, {"command", next.command}};
}

template <typename T>
json list_of(const std::vector<T>& items) {
  json out = json::array();
  for (const T& item : items) out.push_back(json_of(item));
  return out;
}

}  // namespace

json header_of(const Report& report) {
  return {{"format", "diffattn-report"},
          {"version", 2},
          {"title", report.title},
          {"subtitle", report.subtitle},
          {"verdict", report.verdict},
          {"notes", report.notes},
          {"examples", list_of(report.examples)},
          {"commands", list_of(report.commands)},
          {"sequences", list_of(report.sequences)},
          {"models", list_of(report.models)},
          {"curves", list_of(report.curves)},
          {"tables", list_of(report.tables)}};
}

}  // namespace diffattn::analysis
