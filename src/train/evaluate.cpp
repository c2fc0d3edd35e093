// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/evaluate.h"

#include <chrono>
#include <cmath>

#include "train/mixed_precision.h"

namespace diffattn::train {

Evaluation& Evaluation::operator+=(const Evaluation& other) {
  loss_sum += other.loss_sum;
  right += other.right;
  tokens += other.tokens;
  seconds += other.seconds;
  return *this;
}

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

std::vector<torch::Tensor> LayerStatistics::add(const TaskModel& model, const Batch& batch,
                                                const TaskModel::Traces& traces) {
  const auto row_lengths = traced_row_lengths(model, batch, traces.size());
  prefixes_.clear();
  analysis::LayerCalls calls;
  std::vector<torch::Tensor> rows;
  for (size_t layer = 0; layer < traces.size(); ++layer) {
    for (size_t i = 0; i < traces[layer].calls.size(); ++i) {
      const std::string path = i == 0 ? "" : "path." + std::to_string(i) + ".";
      prefixes_.push_back("layer." + std::to_string(layer) + "." + path);
      calls.push_back(traces[layer].calls[i]);
      rows.push_back(
          analysis::row_statistics(calls.back(), analysis::kSparseThreshold, row_lengths[layer]));
    }
  }
  statistics_.add(calls, rows);
  return rows;
}

Values LayerStatistics::means() const {
  const analysis::StatisticsTable table = statistics_.table();
  Values values;
  for (size_t call = 0; call < prefixes_.size(); ++call) {
    for (size_t i = 0; i < table.names.size(); ++i) {
      double sum = 0, heads = 0;
      for (const auto& row : table.rows) {
        if (row.layer != static_cast<int64_t>(call)) continue;
        sum += row.values[i];
        ++heads;
      }
      const double mean = sum / heads;
      if (!std::isnan(mean)) values.emplace_back(prefixes_[call] + table.names[i].key, mean);
    }
  }
  return values;
}

Values attention_statistics(TaskModel& model, const Batch& given, const std::string& dtype) {
  const torch::NoGradGuard no_grad;
  const Batch batch = given.to(model.device());
  TaskModel::Traces traces;
  {
    const MixedPrecision region(model.device(), dtype);
    model.predict(batch, &traces);
  }
  LayerStatistics statistics;
  statistics.add(model, batch, traces);
  return statistics.means();
}

}  // namespace diffattn::train
