// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "diffattn/analysis/attention_statistics.h"
#include "train/mixed_precision.h"

namespace diffattn::train {
namespace {

/// Means over the heads of one call, of every statistic that it has.
void append_statistics(const nn::HeadTensors& call, const std::string& prefix, Values& values) {
  analysis::AttentionStatistics statistics;
  statistics.add({call});
  const analysis::StatisticsTable table = statistics.table();
  for (size_t i = 0; i < table.names.size(); ++i) {
    double sum = 0;
    for (const auto& row : table.rows) sum += row.values[i];
    const double mean = sum / static_cast<double>(table.rows.size());
    if (!std::isnan(mean)) values.emplace_back(prefix + table.names[i].key, mean);
  }
}

std::shared_ptr<TaskModel> as_task(nn::CausalLMImpl& model) {
  return language_model(
      nn::CausalLM(std::dynamic_pointer_cast<nn::CausalLMImpl>(model.shared_from_this())));
}

}  // namespace

Evaluation& Evaluation::operator+=(const Evaluation& other) {
  loss_sum += other.loss_sum;
  right += other.right;
  tokens += other.tokens;
  seconds += other.seconds;
  return *this;
}

// Without a label both are NaN: nothing was measured.
double Evaluation::loss() const { return loss_sum / static_cast<double>(tokens); }
double Evaluation::perplexity() const { return std::exp(loss()); }
double Evaluation::accuracy() const {
  return static_cast<double>(right) / static_cast<double>(tokens);
}

Evaluation evaluate(TaskModel& model, const Batch& given, const std::string& dtype) {
  const auto start = std::chrono::steady_clock::now();
  const Batch batch = given.to(model.device());
  const MixedPrecision region(model.device(), dtype);
  const Predictions made = model.predict(batch);
  Evaluation result;
  result.tokens = made.labels.numel();
  result.loss_sum = made.loss.sum(torch::kFloat64).item<double>();
  result.right = (made.predicted == made.labels).sum().item<int64_t>();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

Evaluation evaluate(nn::CausalLMImpl& model, const Batch& batch, const std::string& dtype) {
  return evaluate(*as_task(model), batch, dtype);
}

Values attention_statistics(TaskModel& model, const Batch& given, const std::string& dtype) {
  const torch::NoGradGuard no_grad;
  const Batch batch = given.to(model.device());
  std::vector<nn::AttentionTrace> traces;
  {
    const MixedPrecision region(model.device(), dtype);
    model.predict(batch, &traces);
  }
  Values values;
  for (size_t layer = 0; layer < traces.size(); ++layer) {
    const auto& calls = traces[layer].calls;
    for (size_t i = 0; i < calls.size(); ++i) {
      const std::string path = i == 0 ? "" : "path." + std::to_string(i) + ".";
      append_statistics(calls[i], "layer." + std::to_string(layer) + "." + path, values);
    }
  }
  return values;
}

Values attention_statistics(nn::CausalLMImpl& model, const Batch& batch, const std::string& dtype) {
  return attention_statistics(*as_task(model), batch, dtype);
}

}  // namespace diffattn::train
