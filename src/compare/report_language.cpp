// SPDX-License-Identifier: Apache-2.0
#include "compare/report_language.h"

#include <fmt/core.h>

#include "compare/language.h"
#include "compare/numbers.h"
#include "compare/report_curves.h"

namespace diffattn::compare {
namespace {

/// Returns the names of the numbers that begin with `prefix`, without it.
std::vector<std::string> names_after(const Comparison& comparison, const std::string& prefix) {
  std::vector<std::string> rest;
  for (const std::string& name : number_names(comparison)) {
    if (name.starts_with(prefix)) rest.push_back(name.substr(prefix.size()));
  }
  return rest;
}

void add_positions(const Comparison& comparison, analysis::Report& report) {
  const auto lengths = names_after(comparison, kLossAt);
  if (lengths.empty()) return;
  analysis::Curves curves = empty_curves("loss by position", "tokens of context", "loss");
  curves.log_x = true;
  curves.note = "A point at n is the mean over tokens with n/2 to n tokens of context.";
  for (const ModelResult& model : comparison.models) {
    analysis::Series series = empty_series(model.name);
    for (const std::string& length : lengths) {
      const MeanSpread loss = number_of(model, fmt::format("{}{}", kLossAt, length));
      series.x.push_back(std::stod(length));
      series.y.push_back(loss.mean);
      series.low.push_back(loss.mean - loss.spread);
      series.high.push_back(loss.mean + loss.spread);
    }
    curves.series.push_back(std::move(series));
  }
  report.curves.push_back(std::move(curves));
}

void add_kinds(const Comparison& comparison, analysis::Report& report) {
  const auto kinds = names_after(comparison, kTest);
  if (kinds.empty()) return;
  analysis::Table table;
  table.name = "Bits per byte of texts that no model has seen";
  const bool several = comparison.seeds.size() > 1;
  table.note = several ? "Mean over seeds; ±: standard deviation. Lower is better."
                       : "One seed: the spread is unknown. Lower is better.";
  table.columns = {{.label = "model", .number = false}};
  const std::string measure = fmt::format(".{}", kBitsPerByte);
  for (const std::string& kind : kinds) {
    const bool one = kind.ends_with(measure);
    table.columns.push_back(
        {.label = one ? kind.substr(0, kind.size() - measure.size()) : "all", .digits = 5});
    if (several) table.columns.push_back({.label = "±", .digits = 2});
  }
  for (const ModelResult& model : comparison.models) {
    table.rows.push_back({model.name});
    for (const std::string& kind : kinds) {
      const MeanSpread bits = number_of(model, fmt::format("{}{}", kTest, kind));
      table.rows.back().emplace_back(bits.mean);
      if (several) table.rows.back().emplace_back(bits.spread);
    }
  }
  report.tables.push_back(std::move(table));
}

}  // namespace

void add_language(const Comparison& comparison, analysis::Report& report) {
  add_positions(comparison, report);
  add_kinds(comparison, report);
}

}  // namespace diffattn::compare
