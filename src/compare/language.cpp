// SPDX-License-Identifier: Apache-2.0
#include "compare/language.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <optional>

#include "diffattn/data/random.h"
#include "diffattn/io/error.h"
#include "train/language_data.h"

namespace diffattn::compare {
namespace {

using torch::Tensor;

constexpr int64_t kRepeatedRows = 16;
constexpr uint64_t kRepeatedSeed = 20260, kRepeatedStream = 1;

data::Corpus read_test_text(const TestText& text, const io::Tokenizer& tokenizer,
                            const train::RunConfig& config) {
  data::ReadOptions options;
  options.skip_bad = config.data.skip_bad;
  return data::read_corpus(text.path, tokenizer, options);
}

/// Evaluates the model on a whole text.
train::Evaluator evaluate_text(Trained& trained, const TestText& text, const Tensor& bytes) {
  data::RowOptions rows;
  rows.seq_len = trained.config.train.seq_len;
  rows.batch_size = trained.config.train.batch_size;
  rows.shuffle = false;
  rows.endless = false;
  train::CorpusBatches batches(read_test_text(text, *trained.data->tokenizer, trained.config),
                               rows);
  train::Evaluator evaluator(trained.trainer->task_model(), trained.config.train.dtype,
                             /*stats_batches=*/0);
  evaluator.count_bytes(bytes);
  for (train::Batch batch = batches.next(); batch.ids.defined(); batch = batches.next()) {
    evaluator.add(batch);
  }
  return evaluator;
}

/// Returns rows [kRepeatedRows, 2 * half] of random tokens that stand for text, each row twice.
Tensor repeated_rows(const Tensor& bytes, int64_t half) {
  const Tensor known = bytes.nonzero().squeeze(1).contiguous();
  const auto* ids = known.const_data_ptr<int64_t>();
  data::Random random(kRepeatedSeed, kRepeatedStream);
  Tensor once = torch::empty({kRepeatedRows, half}, torch::kLong);
  auto* out = once.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < once.numel(); ++i) {
    out[i] = ids[random.below(static_cast<uint64_t>(known.numel()))];
  }
  return torch::cat({once, once}, 1);
}

/// Measures the loss on a random sequence and on the copy that follows it, in float32. An induction
/// head predicts the copy: it looks up which token followed before.
void measure_repeated(Trained& trained, const Tensor& bytes, RunResult& result) {
  const int64_t half = trained.config.train.seq_len / 2;
  if (half < 2) return;
  const Tensor rows = repeated_rows(bytes, half);
  train::TaskModel& model = trained.trainer->task_model();
  const torch::NoGradGuard no_grad;
  double first = 0, second = 0;
  for (int64_t row = 0; row < kRepeatedRows; ++row) {
    train::Batch batch;
    batch.ids = rows.slice(0, row, row + 1);
    batch.labels = torch::cat({batch.ids.slice(1, 1), torch::full({1, 1}, -100, torch::kLong)}, 1);
    const Tensor loss = model.predict(batch.to(model.device())).loss;  // [2 half - 1]
    // No model can predict the first token of the copy.
    first += loss.slice(0, 0, half - 1).mean().item<double>() / kRepeatedRows;
    second += loss.slice(0, half).mean().item<double>() / kRepeatedRows;
  }
  result.metrics.emplace_back("repeated.first", first);
  result.metrics.emplace_back("repeated.second", second);
}

/// Returns the number of updates until the validation loss reached `loss`, linearly interpolated.
std::optional<double> steps_to(const std::vector<CurvePoint>& curve, double loss) {
  for (size_t i = 0; i < curve.size(); ++i) {
    if (!(curve[i].valid_loss <= loss)) continue;
    const auto step = static_cast<double>(curve[i].step);
    if (i == 0) return step;
    const CurvePoint& before = curve[i - 1];
    const double share = (before.valid_loss - loss) / (before.valid_loss - curve[i].valid_loss);
    const auto begin = static_cast<double>(before.step);
    return begin + share * (step - begin);
  }
  return {};
}

}  // namespace

std::vector<TestText> test_texts(const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<TestText> texts;
  if (fs::is_directory(path)) {
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.is_regular_file()) {
        texts.push_back({entry.path().stem().string(), entry.path().string()});
      }
    }
    std::ranges::sort(texts, {}, &TestText::path);
  } else {
    texts.push_back({fs::path(path).stem().string(), path});
  }
  if (texts.empty()) throw io::Error(path, "expected at least one file of text, got none");
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto later = texts.begin() + static_cast<std::ptrdiff_t>(i) + 1;
    if (const auto same = std::ranges::find(later, texts.end(), texts[i].kind, &TestText::kind);
        same != texts.end()) {
      throw io::Error(same->path,
                      "expected a name that no other text has without its suffix, got " +
                          texts[i].path + " too");
    }
  }
  return texts;
}

void check_test_texts(const std::vector<TestText>& texts, const train::RunConfig& config) {
  if (texts.empty()) return;
  const io::Tokenizer tokenizer = train::tokenizer_for(config);
  for (const TestText& text : texts) read_test_text(text, tokenizer, config);
}

std::string fingerprint_of(const std::vector<TestText>& texts, const io::Tokenizer& tokenizer,
                           const train::RunConfig& config) {
  std::string result;
  for (const TestText& text : texts) {
    const uint64_t tokens = read_test_text(text, tokenizer, config).fingerprint();
    result += fmt::format("{} {:016x}\n", text.kind, tokens);
  }
  return result;
}

void measure_language(Trained& trained, const train::Evaluator& valid,
                      const std::vector<TestText>& texts, RunResult& result) {
  for (const train::LengthBucket& bucket : valid.buckets()) {
    result.metrics.emplace_back(fmt::format("{}{}", kLossAt, bucket.to), bucket.sums.loss());
  }
  result.metrics.emplace_back(kBitsPerByte, valid.bits_per_byte());
  const Tensor bytes = train::token_bytes(*trained.data->tokenizer);
  double loss = 0;
  int64_t all_bytes = 0;
  for (const TestText& text : texts) {
    const train::Evaluator evaluated = evaluate_text(trained, text, bytes);
    result.metrics.emplace_back(fmt::format("{}{}.{}", kTest, text.kind, kBitsPerByte),
                                evaluated.bits_per_byte());
    loss += evaluated.total().loss_sum;
    all_bytes += evaluated.bytes();
  }
  if (texts.size() > 1) {
    result.metrics.emplace_back(fmt::format("{}{}", kTest, kBitsPerByte),
                                loss / std::numbers::ln2 / static_cast<double>(all_bytes));
  }
  measure_repeated(trained, bytes, result);
}

void add_tokens_to_baseline(Comparison& comparison) {
  const std::vector<RunResult> base = comparison.models[comparison.baseline].runs;
  for (ModelResult& model : comparison.models) {
    const train::RunConfig::Train& t = model.config.train;
    const auto tokens = static_cast<double>(t.batch_size * t.accumulate * t.seq_len);
    for (size_t i = 0; i < model.runs.size(); ++i) {
      const auto steps = steps_to(model.runs[i].curve, base[i].curve.back().valid_loss);
      if (!steps) continue;
      auto& metrics = model.runs[i].metrics;
      metrics.emplace_back(kTokensToBaseline, *steps * tokens);
      metrics.emplace_back(kTokensToBaselineShare, *steps / static_cast<double>(t.steps));
    }
  }
}

}  // namespace diffattn::compare
