// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/evaluator.h"

#include <array>
#include <chrono>

#include "diffattn/ops.h"
#include "train/mixed_precision.h"

namespace diffattn::train {
namespace {

using torch::Tensor;

constexpr int64_t kBuckets = 41;  // lengths up to 2^40

constexpr std::array<std::pair<Stat, const char*>, 6> kEvaluated{{
    {kStatFocus, "focus"},
    {kStatCoverage, "coverage"},
    {kStatNegativeMass, "negative_mass"},
    {kStatCancelled, "noise_cancelled"},
    {kStatSparse, "sparsity"},
    {kStatEntropy, "entropy"},
}};
constexpr auto kEvaluatedCount = static_cast<int64_t>(kEvaluated.size());

/// k with length in (2^(k-1), 2^k], on the CPU.
Tensor bucket_of(const Tensor& lengths) {
  const Tensor exact = lengths.to(torch::kCPU, torch::kFloat64).clamp_min(1).log2();
  return exact.ceil().to(torch::kLong).clamp(0, kBuckets - 1);
}

Values means_of(const Tensor& row) {
  Values values;
  const double rows = row[kEvaluatedCount].item<double>();
  if (rows == 0) return values;
  for (int64_t i = 0; i < kEvaluatedCount; ++i) {
    values.emplace_back(kEvaluated[static_cast<size_t>(i)].second, row[i].item<double>() / rows);
  }
  return values;
}

}  // namespace

Evaluator::Evaluator(TaskModel& model, std::string dtype, int64_t stats_batches)
    : model_(model),
      dtype_(std::move(dtype)),
      stats_batches_(stats_batches),
      sums_(torch::zeros({kBuckets, 3}, torch::kFloat64)),
      row_sums_(torch::zeros({kBuckets, kEvaluatedCount + 1}, torch::kFloat64)),
      confusion_(static_cast<int64_t>(model.config().labels.size())) {
  model.module()->eval();
}

void Evaluator::add(const Batch& given) {
  const auto start = std::chrono::steady_clock::now();
  const torch::NoGradGuard no_grad;
  const Batch batch = given.to(model_.device());
  Predictions made;
  {
    const MixedPrecision region(model_.device(), dtype_);
    made = model_.predict(batch);
  }
  add_predictions(made);
  total_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (stats_batches_-- <= 0) return;
  TaskModel::Traces traces;
  const MixedPrecision region(model_.device(), dtype_);
  model_.predict(batch, &traces);
  add_statistics(traces);
}

void Evaluator::add_predictions(const Predictions& made) {
  const Tensor right = made.predicted == made.labels;
  const Tensor loss = made.loss.to(torch::kCPU, torch::kFloat64);
  const Tensor columns = torch::stack(
      {torch::ones_like(loss), loss, right.to(torch::kCPU, torch::kFloat64)}, 1);  // [n, 3]
  sums_.index_add_(0, bucket_of(made.lengths), columns);
  total_.tokens += loss.numel();
  total_.loss_sum += loss.sum().item<double>();
  total_.right += right.sum().item<int64_t>();
  if (confusion_.classes() == 0) return;
  const Tensor labels = made.labels.to(torch::kCPU), predicted = made.predicted.to(torch::kCPU);
  for (int64_t i = 0; i < labels.numel(); ++i) {
    confusion_.add(labels[i].item<int64_t>(), predicted[i].item<int64_t>());
  }
}

void Evaluator::add_statistics(const TaskModel::Traces& traces) {
  for (const nn::AttentionTrace& layer : traces) {
    for (const nn::HeadTensors& heads : layer.calls) {
      const Tensor stats =
          attention_stats(heads.q1, heads.q2, heads.k1, heads.k2, heads.lambda, heads.options)
              .flatten(0, -2)
              .to(torch::kCPU, torch::kFloat64);  // [rows, kStatCount]
      std::vector<Tensor> columns;
      for (const auto& [stat, name] : kEvaluated) columns.push_back(stats.select(1, stat));
      const Tensor visible = stats.select(1, kStatVisible);
      columns.push_back(torch::ones_like(visible));
      // Rows that see nothing are padding.
      const Tensor kept = (visible > 0).nonzero().squeeze(1);
      row_sums_.index_add_(0, bucket_of(visible.index_select(0, kept)),
                           torch::stack(columns, 1).index_select(0, kept));
    }
  }
}

std::vector<LengthBucket> Evaluator::buckets() const {
  std::vector<LengthBucket> found;
  for (int64_t k = 0; k < kBuckets; ++k) {
    LengthBucket bucket;
    bucket.from = k == 0 ? 0 : int64_t{1} << (k - 1);
    bucket.to = int64_t{1} << k;
    bucket.sums.tokens = sums_[k][0].item<int64_t>();
    bucket.sums.loss_sum = sums_[k][1].item<double>();
    bucket.sums.right = sums_[k][2].item<int64_t>();
    bucket.attention = means_of(row_sums_[k]);
    if (bucket.sums.tokens > 0) found.push_back(std::move(bucket));
  }
  return found;
}

Values Evaluator::attention() const { return means_of(row_sums_.sum(0)); }

}  // namespace diffattn::train
