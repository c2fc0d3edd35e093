// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "diffattn/data/metrics.h"
#include "diffattn/train/evaluate.h"

namespace diffattn::train {

/// What was measured where there were above `from` and at most `to` tokens to look at.
struct LengthBucket {
  int64_t from = 0, to = 0;
  Evaluation sums;   // its seconds are not told apart: 0
  Values attention;  // as Evaluator::attention(), of rows that see as many; may be empty
};

/// Adds up what a model does on one batch after another: a few sums per length bucket, no maps.
///
/// Lengths fall into (2^(k-1), 2^k]. Of language models the length is that of the context of each
/// token, of classifiers and summarisers that of the text.
class Evaluator {
 public:
  /// The attention statistics of the first `stats_batches` batches are taken. The model is put into
  /// evaluation mode.
  Evaluator(TaskModel& model, std::string dtype, int64_t stats_batches = 1);

  void add(const Batch& batch);

  const Evaluation& total() const { return total_; }
  /// Those that something fell into, shortest first.
  std::vector<LengthBucket> buckets() const;
  /// "focus", "coverage", "negative_mass", "noise_cancelled", ...: means over everything, defined
  /// as `analysis::attention_statistics()`; coverage is the share of entries with A > 1/10. NaN:
  /// what plain maps do not have. Empty without statistics.
  Values attention() const;
  /// "layer.0.focus", ... of the same batches.
  Values layer_attention() const { return layers_.means(); }
  /// Of a classifier; no classes for other models.
  const data::Confusion& confusion() const { return confusion_; }

 private:
  void add_predictions(const Predictions& made);
  void add_statistics(const Batch& batch, const TaskModel::Traces& traces);

  TaskModel& model_;
  std::string dtype_;
  int64_t stats_batches_;
  Evaluation total_;
  torch::Tensor sums_;      // [buckets, 3] float64: labels, loss, right
  torch::Tensor row_sums_;  // [buckets, statistics + 3] float64; see evaluator.cpp
  LayerStatistics layers_;
  data::Confusion confusion_;
};

}  // namespace diffattn::train
