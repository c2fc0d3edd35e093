// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "diffattn/analysis/attention_statistics.h"
#include "diffattn/train/batch.h"
#include "diffattn/train/task_model.h"

namespace diffattn::train {

/// Sums over the labels that count. The results of batches add up.
struct Evaluation {
  double loss_sum = 0;
  int64_t right = 0, tokens = 0;
  double seconds = 0;

  Evaluation& operator+=(const Evaluation& other);
  double loss() const;  // mean; NaN without labels, like the two below
  double perplexity() const;
  double accuracy() const;
};

/// Computes the loss and the right answers of a model on one batch, on the model's device. `dtype`
/// is "float32" or "bfloat16" (mixed precision). The model must be in evaluation mode.
Evaluation evaluate(TaskModel& model, const Batch& batch, const std::string& dtype);

using Values = std::vector<std::pair<std::string, double>>;

/// Means of the statistics of `analysis::attention_statistics()` per layer, over all batches added:
/// "layer.0.focus", ..., and "layer.0.path.1.focus" for the further attention calls of a layer.
/// Statistics that a layer does not have are left out.
class LayerStatistics {
 public:
  /// Adds the traces of `model` on `batch`, without the rows of padding. Returns
  /// `analysis::row_statistics` of every attention call, layer by layer.
  std::vector<torch::Tensor> add(const TaskModel& model, const Batch& batch,
                                 const TaskModel::Traces& traces);
  Values means() const;

 private:
  std::vector<std::string> prefixes_;  // one per attention call
  analysis::AttentionStatistics statistics_;
};

/// Computes the LayerStatistics of one batch.
Values attention_statistics(TaskModel& model, const Batch& batch, const std::string& dtype);

}  // namespace diffattn::train
