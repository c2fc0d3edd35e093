// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "compare/compare.h"

namespace diffattn::compare {

struct MeanSpread {
  double mean = 0, spread = 0;  // spread: sample standard deviation, 0 for one value
};
MeanSpread mean_and_spread(const std::vector<double>& values);

/// Returns a number of a run by its name, or NaN if the run has no such number. Names: "loss",
/// "valid_loss", "accuracy", "steps_to_0.9" (the first validation with at least that accuracy), the
/// names in `metrics`, "needles.4", "answer", "noise", "strongest_answer", "logits_top1",
/// "logits_median", "hidden_top1", "hidden_median".
double number_of(const RunResult& run, const std::string& name);
MeanSpread number_of(const ModelResult& model, const std::string& name);

/// Returns the names for which at least one run has a number.
std::vector<std::string> number_names(const Comparison& comparison);

}  // namespace diffattn::compare
