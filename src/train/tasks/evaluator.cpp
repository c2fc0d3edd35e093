// SPDX-License-Identifier: Apache-2.0
#include "train/tasks/evaluator.h"

#include <array>
#include <chrono>
#include <cmath>
#include <numbers>

#include "diffattn/io/tokenizer.h"
#include "diffattn/ops.h"
#include "ops/layers/rounded_inputs.h"
#include "train/mixed_precision.h"

namespace diffattn::train {
namespace {

using torch::Tensor;

constexpr int64_t kBuckets = 41;  // lengths up to 2^40

/// The number that a mean divides by: rows, visible entries, or rows of layers with two maps. The
/// columns of row_sums_ are the statistics and then these counts.
enum Divisor { kRows, kEntries, kRowsOfTwoMaps, kDivisors };

struct Evaluated {
  Stat stat;
  const char* name;
  Divisor by;
};

constexpr std::array<Evaluated, 6> kEvaluated{{
    {kStatFocus, "focus", kEntries},
    {kStatCoverage, "coverage", kEntries},
    {kStatNegativeMass, "negative_mass", kRows},
    {kStatCancelled, "noise_cancelled", kRowsOfTwoMaps},
    {kStatSparse, "sparsity", kEntries},
    {kStatEntropy, "entropy", kRows},
}};
constexpr auto kEvaluatedCount = static_cast<int64_t>(kEvaluated.size());

/// Returns k with length in (2^(k-1), 2^k], on the CPU.
Tensor bucket_of(const Tensor& lengths) {
  const Tensor exact = lengths.to(torch::kCPU, torch::kFloat64).clamp_min(1).log2();
  return exact.ceil().to(torch::kLong).clamp(0, kBuckets - 1);
}

Values means_of(const Tensor& row) {
  Values values;
  if (row[kEvaluatedCount + kRows].item<double>() == 0) return values;
  for (int64_t i = 0; i < kEvaluatedCount; ++i) {
    const Evaluated& one = kEvaluated[static_cast<size_t>(i)];
    // 0 / 0 gives NaN if no map has the statistic.
    values.emplace_back(one.name,
                        row[i].item<double>() / row[kEvaluatedCount + one.by].item<double>());
  }
  return values;
}

}  // namespace

Tensor token_bytes(const io::Tokenizer& tokenizer) {
  // Decoders may strip a space at the start of a text, so each token follows another one.
  std::vector<io::TokenId> ids = tokenizer.encode("a", {.add_special_tokens = false});
  const size_t before = tokenizer.decode_bytes(ids).size();
  ids.push_back(0);
  const auto size = static_cast<int64_t>(tokenizer.vocab_size());
  Tensor bytes = torch::empty({size}, torch::kLong);
  for (int64_t id = 0; id < size; ++id) {
    ids.back() = static_cast<io::TokenId>(id);
    bytes[id] = static_cast<int64_t>(tokenizer.decode_bytes(ids).size() - before);
  }
  return bytes;
}

Evaluator::Evaluator(TaskModel& model, std::string dtype, int64_t stats_batches)
    : model_(model),
      dtype_(std::move(dtype)),
      stats_batches_(stats_batches),
      sums_(torch::zeros({kBuckets, 3}, torch::kFloat64)),
      row_sums_(torch::zeros({kBuckets, kEvaluatedCount + kDivisors}, torch::kFloat64)),
      confusion_(static_cast<int64_t>(model.config().labels.size())) {
  model.module()->eval();
}

void Evaluator::add(const Batch& given) {
  const auto start = std::chrono::steady_clock::now();
  const torch::NoGradGuard no_grad;
  const Batch batch = given.to(model_.device());
  const bool traced = stats_batches_-- > 0;
  TaskModel::Traces traces;
  Predictions made;
  {
    const MixedPrecision region(model_.device(), dtype_);
    const RoundedInputs rounded(activation_bits_);
    made = model_.predict(batch, traced ? &traces : nullptr);
  }
  add_predictions(made);
  total_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (traced) add_statistics(batch, traces);
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
  if (bytes_of_token_.defined()) {
    bytes_ += bytes_of_token_.index_select(0, made.labels.to(torch::kCPU)).sum().item<int64_t>();
  }
  if (confusion_.classes() == 0) return;
  const Tensor labels = made.labels.to(torch::kCPU), predicted = made.predicted.to(torch::kCPU);
  for (int64_t i = 0; i < labels.numel(); ++i) {
    confusion_.add(labels[i].item<int64_t>(), predicted[i].item<int64_t>());
  }
}

void Evaluator::add_statistics(const Batch& batch, const TaskModel::Traces& traces) {
  const std::vector<Tensor> rows = layers_.add(model_, batch, traces);
  size_t call = 0;
  for (const nn::AttentionTrace& layer : traces) {
    for (const nn::HeadTensors& heads : layer.calls) {
      const Tensor stats = rows[call++].flatten(0, -2).to(torch::kCPU);  // [rows, kStatCount]
      const Tensor visible = stats.select(1, kStatVisible);
      std::vector<Tensor> columns;
      for (const Evaluated& one : kEvaluated) {
        Tensor values = stats.select(1, one.stat);
        if (one.by == kEntries) values = values * visible;  // a share of the visible entries
        if (one.by == kRowsOfTwoMaps && heads.single_map) values = torch::zeros_like(values);
        columns.push_back(values);
      }
      columns.push_back(torch::ones_like(visible));
      columns.push_back(visible);
      columns.push_back(torch::full_like(visible, heads.single_map ? 0.0 : 1.0));
      // Rows without a visible entry are padding.
      const Tensor kept = (visible > 0).nonzero().squeeze(1);
      row_sums_.index_add_(0, bucket_of(visible.index_select(0, kept)),
                           torch::stack(columns, 1).index_select(0, kept));
    }
  }
}

void Evaluator::sum(parallel::Collective& world) {
  const int64_t classes = confusion_.classes();
  std::vector<double> own{total_.loss_sum, static_cast<double>(total_.right),
                          static_cast<double>(total_.tokens), static_cast<double>(bytes_)};
  for (int64_t i = 0; i < classes * classes; ++i) {
    own.push_back(static_cast<double>(confusion_.count(i / classes, i % classes)));
  }
  const Tensor sums = torch::tensor(own, torch::kFloat64);
  const Tensor seconds = torch::empty({world.size()}, torch::kFloat64);
  world.all_reduce(sums).wait();
  world.all_reduce(sums_).wait();
  world.all_gather(seconds, torch::full({1}, total_.seconds, torch::kFloat64)).wait();
  total_.loss_sum = sums[0].item<double>();
  total_.right = static_cast<int64_t>(sums[1].item<double>());
  total_.tokens = static_cast<int64_t>(sums[2].item<double>());
  bytes_ = static_cast<int64_t>(sums[3].item<double>());
  total_.seconds = seconds.max().item<double>();
  data::Confusion all(classes);
  for (int64_t i = 0; i < classes * classes; ++i) {
    all.add(i / classes, i % classes, static_cast<int64_t>(sums[4 + i].item<double>()));
  }
  confusion_ = all;
}

double Evaluator::bits_per_byte() const {
  if (bytes_ == 0) return std::nan("");
  return total_.loss_sum / std::numbers::ln2 / static_cast<double>(bytes_);
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
