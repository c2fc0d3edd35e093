// SPDX-License-Identifier: Apache-2.0
#include "compare/report_tables.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "compare/numbers.h"
#include "compare/report_curves.h"
#include "compare/report_language.h"

namespace diffattn::compare {
namespace {

using analysis::Curves;
using analysis::Series;
using analysis::Table;
using analysis::TableColumn;
using Better = TableColumn::Better;

TableColumn text_column(const std::string& label) {
  return {.label = label, .number = false, .digits = 4, .better = Better::kNeither};
}
TableColumn number_column(const std::string& label, Better better) {
  return {.label = label, .number = true, .digits = 4, .better = better};
}

/// Returns `better` if the best model differs from every other by more than their spread over
/// several seeds; else kNeither, so that the page marks none.
Better if_clear(const Comparison& comparison, const std::string& name, Better better) {
  if (comparison.seeds.size() < 2) return Better::kNeither;
  std::vector<MeanSpread> numbers;
  for (const ModelResult& model : comparison.models) numbers.push_back(number_of(model, name));
  const auto rank = [&](const MeanSpread& n) {
    return better == Better::kHigher ? -n.mean : n.mean;
  };
  std::ranges::sort(numbers, {}, rank);
  for (size_t i = 1; i < numbers.size(); ++i) {
    const double spread = std::max(numbers[0].spread, numbers[i].spread);
    if (!(std::abs(numbers[i].mean - numbers[0].mean) > spread)) return Better::kNeither;
  }
  return better;
}

Table overview(const Comparison& comparison) {
  Table table;
  table.name = "Models";
  const bool several = comparison.seeds.size() > 1;
  table.note =
      several ? fmt::format("Means over {} seeds; ±: standard deviation.", comparison.seeds.size())
              : "One seed: the spread is unknown.";
  table.columns = {
      text_column("model"), number_column("parameters", Better::kNeither),
      number_column("validation loss", if_clear(comparison, "valid_loss", Better::kLower)),
      number_column("accuracy", if_clear(comparison, "accuracy", Better::kHigher))};
  if (several) table.columns.push_back(number_column("± accuracy", Better::kNeither));
  table.columns.push_back(number_column("ms per step", Better::kNeither));
  table.columns.push_back(number_column("MiB of tensors", Better::kNeither));
  for (const ModelResult& m : comparison.models) {
    const MeanSpread accuracy = number_of(m, "accuracy");
    table.rows.push_back({m.name, static_cast<double>(m.parameters),
                          number_of(m, "valid_loss").mean, accuracy.mean});
    if (several) table.rows.back().push_back(accuracy.spread);
    table.rows.back().push_back(1e3 * m.step_seconds);
    table.rows.back().push_back(static_cast<double>(m.step_bytes) / (1 << 20));
  }
  return table;
}

Table all_numbers(const Comparison& comparison) {
  Table table;
  table.name = "Every number";
  const bool several = comparison.seeds.size() > 1;
  table.note = several ? "Mean and standard deviation over seeds." : "";
  table.columns = {text_column("number")};
  for (const ModelResult& m : comparison.models) {
    table.columns.push_back(number_column(m.name, Better::kNeither));
    if (several) table.columns.push_back(number_column("±", Better::kNeither));
  }
  for (const std::string& name : number_names(comparison)) {
    std::vector<std::variant<std::string, double>> row{name};
    for (const ModelResult& m : comparison.models) {
      row.emplace_back(number_of(m, name).mean);
      if (several) row.emplace_back(number_of(m, name).spread);
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

using Row = std::vector<std::variant<std::string, double>>;

/// Adds the accuracy by number of needles, as in Table 2 of the paper, as a table and as curves.
void add_accuracy(const Comparison& comparison, const std::set<int64_t>& counts,
                  analysis::Report& report) {
  Table table;
  table.name = "Accuracy by number of needles";
  table.note =
      "Each sequence has two questions (one question for one needle); mean over five depths.";
  table.columns = {text_column("model")};
  for (const int64_t n : counts) {
    table.columns.push_back(
        number_column(std::to_string(n) + (n == 1 ? " needle" : " needles"),
                      if_clear(comparison, "needles." + std::to_string(n), Better::kHigher)));
  }
  Curves curves = empty_curves("accuracy by needles", "needles", "accuracy");
  for (const ModelResult& m : comparison.models) {
    Row row{m.name};
    Series series = empty_series(m.name);
    for (const int64_t n : counts) {
      const MeanSpread accuracy = number_of(m, "needles." + std::to_string(n));
      row.emplace_back(accuracy.mean);
      series.x.push_back(static_cast<double>(n));
      series.y.push_back(accuracy.mean);
      series.low.push_back(accuracy.mean - accuracy.spread);
      series.high.push_back(accuracy.mean + accuracy.spread);
    }
    table.rows.push_back(std::move(row));
    curves.series.push_back(std::move(series));
  }
  report.tables.push_back(std::move(table));
  report.curves.push_back(std::move(curves));
}

/// Means of a model over all results of one depth.
struct DepthMeans {
  double answer = 0, noise = 0, accuracy = 0;
};

DepthMeans means_at(const ModelResult& model, double depth) {
  DepthMeans means;
  double right = 0, questions = 0, cells = 0;
  for (const RunResult& run : model.runs) {
    for (const NeedleCell& cell : run.needles) {
      if (cell.depth != depth) continue;
      means.answer += cell.answer;
      means.noise += cell.noise;
      right += static_cast<double>(cell.first_right);
      questions += static_cast<double>(cell.first_questions);
      cells += 1;
    }
  }
  return {means.answer / cells, means.noise / cells, right / questions};
}

/// Adds the attention to answer and noise by depth, as in Table 3 of the paper, and the accuracy by
/// depth.
void add_depths(const Comparison& comparison, const std::set<double>& depths,
                analysis::Report& report) {
  Table table;
  table.name = "Attention by depth of the answer";
  table.note =
      "Share of |A| in the row of the question that falls on its needle and on noise; mean over "
      "heads, layers, numbers of needles and seeds.";
  table.columns = {text_column("model"), text_column("falls on")};
  for (const double depth : depths) {
    table.columns.push_back(
        number_column(fmt::format("depth {:.0f} %", 100 * depth), Better::kNeither));
  }
  Curves curves = empty_curves("accuracy by depth", "depth", "accuracy");
  for (const ModelResult& m : comparison.models) {
    Row answer{m.name, std::string("answer")}, noise{m.name, std::string("noise")};
    Series series = empty_series(m.name);
    for (const double depth : depths) {
      const DepthMeans means = means_at(m, depth);
      answer.emplace_back(means.answer);
      noise.emplace_back(means.noise);
      series.x.push_back(depth);
      series.y.push_back(means.accuracy);
    }
    table.rows.push_back(std::move(answer));
    table.rows.push_back(std::move(noise));
    curves.series.push_back(std::move(series));
  }
  report.tables.push_back(std::move(table));
  report.curves.push_back(std::move(curves));
}

void add_needles(const Comparison& comparison, analysis::Report& report) {
  std::set<int64_t> counts;
  std::set<double> depths;
  for (const NeedleCell& cell : comparison.models.front().runs.front().needles) {
    counts.insert(cell.needles);
    depths.insert(cell.depth);
  }
  if (counts.empty()) return;
  add_accuracy(comparison, counts, report);
  add_depths(comparison, depths, report);
}

void add_outliers(const Comparison& comparison, analysis::Report& report) {
  Table table;
  table.name = "Largest activations";
  table.note = "Magnitudes; mean over seeds. Values far above the median are outliers.";
  table.columns = {text_column("model"),
                   text_column("of"),
                   number_column("top 1", Better::kNeither),
                   number_column("top 10", Better::kNeither),
                   number_column("top 100", Better::kNeither),
                   number_column("median", Better::kNeither),
                   number_column("top 1 / median", Better::kNeither)};
  for (const ModelResult& m : comparison.models) {
    for (const auto& [name, member] : {std::pair{"attention logits", &RunResult::attention_logits},
                                       std::pair{"hidden states", &RunResult::hidden_states}}) {
      Outliers mean;
      const auto runs = static_cast<double>(m.runs.size());
      for (const RunResult& run : m.runs) {
        const Outliers& o = run.*member;
        mean.top1 += o.top1 / runs;
        mean.top10 += o.top10 / runs;
        mean.top100 += o.top100 / runs;
        mean.median += o.median / runs;
      }
      if (mean.median == 0) continue;
      table.rows.push_back({m.name, std::string(name), mean.top1, mean.top10, mean.top100,
                            mean.median, mean.top1 / mean.median});
    }
  }
  if (!table.rows.empty()) report.tables.push_back(std::move(table));
}

}  // namespace

void add_tables(const Comparison& comparison, analysis::Report& report) {
  report.tables.push_back(overview(comparison));
  add_needles(comparison, report);
  add_language(comparison, report);
  add_outliers(comparison, report);
  report.tables.push_back(all_numbers(comparison));
}

}  // namespace diffattn::compare
