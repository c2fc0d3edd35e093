// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "compare/compare.h"

namespace diffattn::compare {

/// Returns a JSON object; `models` maps each name to its parameters, losses, metrics, curves and
/// times. Non-finite numbers become null.
std::string to_json(const Comparison& comparison);

/// Returns a CSV table `model,seed,name,value` with one number per line.
std::string numbers_csv(const Comparison& comparison);
/// Returns a CSV table `model,seed,step,loss,valid_loss,valid_accuracy`.
std::string curves_csv(const Comparison& comparison);

/// Returns a table for a terminal: one line per number, one column per model, mean and spread over
/// seeds.
std::string to_text(const Comparison& comparison);

/// Returns one verdict per model other than the baseline: both accuracies with their spread, and if
/// they differ by more than that. Also returns a sentence per model with skipped updates.
std::vector<std::string> verdicts(const Comparison& comparison);

/// Writes report.html, results.json, numbers.csv and curves.csv into a folder. The report has the
/// paragraphs of `introduction` and ends with the commands in `next`.
void write_results(const std::string& folder, const Comparison& comparison,
                   const std::vector<std::string>& introduction,
                   const std::vector<analysis::NextCommand>& next);

}  // namespace diffattn::compare
