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

/// Sums over labels that counted, so that batches can be added up.
struct Evaluation {
  double loss_sum = 0;
  int64_t right = 0, tokens = 0;
  double seconds = 0;

  Evaluation& operator+=(const Evaluation& other);
  double loss() const;
  double perplexity() const;
  double accuracy() const;
};

/// Loss and right answers of a model on one batch, on the model's device, in `dtype` ("float32" or
/// "bfloat16": mixed precision). The model must be in evaluation mode.
Evaluation evaluate(TaskModel& model, const Batch& batch, const std::string& dtype);

using Values = std::vector<std::pair<std::string, double>>;

/// Mean of every statistic of `analysis::attention_statistics()` per layer over the batches added:
/// "layer.0.focus", ...; "layer.0.path.1.focus" of a layer's further maps. What a layer does not
/// have is left out.
class LayerStatistics {
 public:
  /// What `model` traced on `batch`. Returns `analysis::row_statistics` of every call, layer by
  /// layer; padding of the batch does not count.
  std::vector<torch::Tensor> add(const TaskModel& model, const Batch& batch,
                                 const TaskModel::Traces& traces);
  Values means() const;

 private:
  std::vector<std::string> prefixes_;  // one per call
  analysis::AttentionStatistics statistics_;
};

/// `LayerStatistics` of one batch.
Values attention_statistics(TaskModel& model, const Batch& batch, const std::string& dtype);

}  // namespace diffattn::train
