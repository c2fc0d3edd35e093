// SPDX-License-Identifier: Apache-2.0
#include "compare/report.h"

#include <fmt/core.h>

#include <algorithm>

#include "compare/environment.h"
#include "compare/numbers.h"
#include "compare/report_curves.h"
#include "compare/report_tables.h"
#include "compare/results.h"

namespace diffattn::compare {
namespace {

using analysis::Curves;
using analysis::Series;

/// Returns one curve per model: the mean over seeds, with a band from the smallest to the largest.
Curves curves_of(const Comparison& comparison, const std::string& name, const std::string& y_label,
                 double CurvePoint::*value) {
  Curves curves = empty_curves(name, "step", y_label);
  for (const ModelResult& model : comparison.models) {
    Series series = empty_series(model.name);
    for (size_t i = 0; i < model.runs.front().curve.size(); ++i) {
      std::vector<double> values;
      for (const RunResult& run : model.runs) values.push_back(run.curve[i].*value);
      series.x.push_back(static_cast<double>(model.runs.front().curve[i].step));
      series.y.push_back(mean_and_spread(values).mean);
      if (model.runs.size() > 1) {
        series.low.push_back(*std::min_element(values.begin(), values.end()));
        series.high.push_back(*std::max_element(values.begin(), values.end()));
      }
    }
    curves.series.push_back(std::move(series));
  }
  return curves;
}

/// Returns why the validation curve may rise while the training loss falls, or an empty text.
std::string curriculum_note(const train::RunConfig& config) {
  const train::RunConfig::Curriculum& curriculum = config.curriculum;
  if (config.task != train::Task::kNeedle || curriculum.steps == 0) return "";
  return fmt::format(
      "Validation always uses texts of {} tokens. The first {} steps train on texts of {} tokens, "
      "so validation can get worse until longer texts come, up to step {}.",
      config.needle.length, curriculum.steps, curriculum.length,
      curriculum.steps + curriculum.growth_steps);
}

/// Adds the learning curves. The page shows the first two on its first screen.
void add_curves(const Comparison& comparison, analysis::Report& report) {
  const std::string note = curriculum_note(comparison.models.front().config);
  report.curves.push_back(
      curves_of(comparison, "validation accuracy", "accuracy", &CurvePoint::valid_accuracy));
  report.curves.push_back(
      curves_of(comparison, "validation loss", "loss", &CurvePoint::valid_loss));
  for (Curves& curves : report.curves) curves.note = note;
  report.curves.push_back(curves_of(comparison, "training loss", "loss", &CurvePoint::loss));
}

/// Returns the head with most weight on the answer, or one that shows what the models did.
analysis::HeadIndex head_to_open(const analysis::ModelAttention& model) {
  return analysis::head_on_answer(model).value_or(
      analysis::strongest_head(model.statistics, {"noise_cancelled", "focus"}));
}

}  // namespace

void write_report(const std::string& path, const Comparison& comparison,
                  const std::vector<std::string>& introduction,
                  const std::vector<analysis::NextCommand>& next) {
  analysis::Report report;
  report.title = "Differential attention beside a Transformer of equal size";
  report.subtitle =
      fmt::format("task {}, {} steps, {} {}", train::task_name(comparison.task),
                  comparison.models.front().config.train.steps, comparison.seeds.size(),
                  comparison.seeds.size() == 1 ? "seed" : "seeds");
  report.verdict = verdicts(comparison);
  report.notes = introduction;
  const std::string environment = environment_line(comparison);
  if (!environment.empty()) report.notes.push_back(environment);
  if (comparison.example) report.examples.push_back(*comparison.example);
  report.commands = next;
  add_curves(comparison, report);
  add_tables(comparison, report);
  analysis::ReportOptions options;
  for (const analysis::ModelAttention& model : comparison.attention) {
    options.shown.push_back(head_to_open(model));
  }
  analysis::write_report(path, report, comparison.attention, options);
}

}  // namespace diffattn::compare
