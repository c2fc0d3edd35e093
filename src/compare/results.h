// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "compare/compare.h"

// What a comparison found, for people and for programs.

namespace diffattn::compare {

/// One object; `models` maps each name to its parameters, losses, metrics, curve and times. Numbers
/// that are not finite are null.
std::string to_json(const Comparison& comparison);

/// `model,seed,name,value`, one number a line.
std::string numbers_csv(const Comparison& comparison);
/// `model,seed,step,loss,valid_loss,valid_accuracy`.
std::string curves_csv(const Comparison& comparison);

/// For a terminal: one line per number, one column per model, mean and spread over seeds.
std::string to_text(const Comparison& comparison);

/// One sentence per model beside the baseline: better, worse, or no difference beyond the spread of
/// the seeds, by the numbers measured; and one per model of which updates were left out.
std::vector<std::string> verdicts(const Comparison& comparison);

/// Writes report.html, results.json, numbers.csv and curves.csv into a folder. `introduction`:
/// paragraphs before what was found; `next`: commands to type after it.
void write_results(const std::string& folder, const Comparison& comparison,
                   const std::vector<std::string>& introduction,
                   const std::vector<std::string>& next);

}  // namespace diffattn::compare
