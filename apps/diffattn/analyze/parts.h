// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/diffattn/analyze/text.h"
#include "diffattn/analysis/attention_report.h"

namespace diffattn::app {

struct AnalyzeRequest {
  std::vector<std::string> folders;  // of the model, and those it is compared with
  std::string device = "cpu", dtype = "float32";
  TextOptions text;
  std::optional<int64_t> layer, head;             // none: the head that shows most
  double threshold = analysis::kSparseThreshold;  // of sparsity
  std::string part;                               // of an encoder-decoder, for pictures
};

/// Everything that pages, pictures and numbers are made from.
struct Analysis {
  std::vector<analysis::ModelAttention> models;  // every part of every model
  std::vector<analysis::HeadIndex> heads;        // of each: the one that is shown
  std::vector<std::size_t> pictured;             // the part of each model that is in pictures
  std::string title, subtitle;
};

/// Reads the models and runs them on the texts. Throws io::Error and train::ConfigError naming the
/// option or file, what was expected and what came.
Analysis analyze(const AnalyzeRequest& request);

}  // namespace diffattn::app
