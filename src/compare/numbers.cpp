// SPDX-License-Identifier: Apache-2.0
#include "compare/numbers.h"

#include <algorithm>
#include <cmath>

namespace diffattn::compare {

MeanSpread mean_and_spread(const std::vector<double>& values) {
  MeanSpread result;
  if (values.empty()) return {std::nan(""), std::nan("")};
  for (const double value : values) result.mean += value / static_cast<double>(values.size());
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  if (values.size() > 1) {
    result.spread = std::sqrt(squares / static_cast<double>(values.size() - 1));
  }
  return result;
}

namespace {

constexpr const char* kStepsToLearn = "steps_to_0.9";
constexpr double kLearntAccuracy = 0.9;

double needle_number(const RunResult& run, const std::string& name) {
  double sum = 0, weight = 0;
  const bool count = name.starts_with("needles.");
  for (const NeedleCell& cell : run.needles) {
    if (count && name != "needles." + std::to_string(cell.needles)) continue;
    const double one = name == "answer"             ? cell.answer
                       : name == "noise"            ? cell.noise
                       : name == "strongest_answer" ? cell.strongest_answer
                                                    : static_cast<double>(cell.right);
    sum += one;
    weight += count ? static_cast<double>(cell.questions) : 1.0;
  }
  return weight == 0 ? std::nan("") : sum / weight;
}

/// Returns the first update after which the validation accuracy is at least kLearntAccuracy.
double steps_to_learn(const RunResult& run) {
  const auto point = std::ranges::find_if(
      run.curve, [](const CurvePoint& p) { return p.valid_accuracy >= kLearntAccuracy; });
  return point == run.curve.end() ? std::nan("") : static_cast<double>(point->step);
}

double outlier_number(const Outliers& outliers, const std::string& what) {
  if (outliers.median == 0) return std::nan("");
  return what == "top1" ? outliers.top1 : what == "median" ? outliers.median : std::nan("");
}

}  // namespace

double number_of(const RunResult& run, const std::string& name) {
  if (name == "loss") return run.loss;
  if (name == "valid_loss") return run.valid.loss();
  if (name == "accuracy") return run.valid.accuracy();
  if (name == kStepsToLearn) return steps_to_learn(run);
  for (const auto& [known, value] : run.metrics) {
    if (known == name) return value;
  }
  if (name.starts_with("logits_")) return outlier_number(run.attention_logits, name.substr(7));
  if (name.starts_with("hidden_")) return outlier_number(run.hidden_states, name.substr(7));
  return needle_number(run, name);
}

MeanSpread number_of(const ModelResult& model, const std::string& name) {
  std::vector<double> values;
  for (const RunResult& run : model.runs) values.push_back(number_of(run, name));
  return mean_and_spread(values);
}

std::vector<std::string> number_names(const Comparison& comparison) {
  std::vector<std::string> names{"loss", "valid_loss", "accuracy", kStepsToLearn};
  const auto add = [&](const std::string& name) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  };
  for (const ModelResult& model : comparison.models) {
    for (const RunResult& run : model.runs) {
      for (const auto& [name, value] : run.metrics) add(name);
      for (const NeedleCell& cell : run.needles) add("needles." + std::to_string(cell.needles));
    }
  }
  for (const char* name : {"answer", "strongest_answer", "noise", "logits_top1", "logits_median",
                           "hidden_top1", "hidden_median"}) {
    add(name);
  }
  std::erase_if(names, [&](const std::string& name) {
    const auto has_none = [&](const RunResult& run) { return std::isnan(number_of(run, name)); };
    return std::ranges::all_of(comparison.models, [&](const ModelResult& model) {
      return std::ranges::all_of(model.runs, has_none);
    });
  });
  return names;
}

}  // namespace diffattn::compare
