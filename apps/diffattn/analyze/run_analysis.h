// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/diffattn/analyze/analyzed_texts.h"
#include "diffattn/analysis/attention_report.h"

namespace diffattn::app {

struct AnalysisRequest {
  std::vector<std::string> folders;  // the model first, then those of --compare
  std::string device = "cpu", dtype = "float32";
  TextOptions text;
  std::optional<int64_t> layer, head;             // none: the strongest head
  double threshold = analysis::kSparseThreshold;  // of the sparsity
  std::string part;                               // of a model, for pictures; empty: the first
};

/// The attention from which pages, pictures and numbers are made.
struct AnalysisResult {
  std::vector<analysis::ModelAttention> models;  // every part of every model
  std::vector<analysis::HeadIndex> heads;        // the head that is shown, for each of `models`
  std::vector<size_t> pictured;                  // index in `models` of each model's picture
  std::string title, subtitle;
};

/// Loads the models and runs them on the texts. Throws io::Error and train::ConfigError that name
/// the option or file.
AnalysisResult run_analysis(const AnalysisRequest& request);

}  // namespace diffattn::app
