// SPDX-License-Identifier: Apache-2.0
#include "train/tasks/example_data.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "diffattn/io/error.h"
#include "train/tasks/row_options.h"

namespace diffattn::train {
namespace {

/// Converts examples to a batch.
using ToBatch = std::function<Batch(const data::ExampleSet&)>;

class GeneratedBatches final : public BatchSource {
 public:
  GeneratedBatches(data::ExampleRows rows, ToBatch to_batch)
      : rows_(std::move(rows)), to_batch_(std::move(to_batch)) {}
  Batch next() override { return to_batch_(rows_.next()); }
  std::string position() const override { return rows_.position(); }
  void seek(const std::string& position) override { rows_.seek(position); }

 private:
  data::ExampleRows rows_;
  ToBatch to_batch_;
};

class ReadBatches final : public BatchSource {
 public:
  ReadBatches(std::shared_ptr<const data::ExampleSet> set, const data::RowOptions& options,
              ToBatch to_batch)
      : set_(std::move(set)),
        order_(set_->examples.size(), options),
        to_batch_(std::move(to_batch)) {}
  Batch next() override {
    data::ExampleSet chosen;
    for (const uint64_t i : order_.next()) chosen.examples.push_back(set_->examples[i]);
    return to_batch_(chosen);
  }
  std::string position() const override { return order_.position(); }
  void seek(const std::string& position) override { order_.seek(position); }

 private:
  std::shared_ptr<const data::ExampleSet> set_;
  data::ShuffledIndices order_;
  ToBatch to_batch_;
};

/// Data of a classification or summarisation, generated or read from files.
class ExampleData final : public TaskData {
 public:
  ExampleData(std::shared_ptr<const data::ExampleTask> generator, const RunConfig& config)
      : generator_(std::move(generator)), options_(row_options(config)) {
    labels = generator_->examples(0, data::Split::kTrain, 0, 0).label_names;
    begin_token = data::kTaskMark;
    end_token = data::kTaskEnd;
  }
  ExampleData(std::pair<data::ExampleSet, data::ExampleSet> sets,
              const io::Tokenizer& text_tokenizer, const RunConfig& config)
      : train_(std::make_shared<data::ExampleSet>(std::move(sets.first))),
        valid_(std::make_shared<data::ExampleSet>(std::move(sets.second))),
        options_(row_options(config)) {
    tokenizer = text_tokenizer;
    labels = train_->label_names;
    int64_t tokens = 0;
    for (const data::Example& e : train_->examples) tokens += std::ssize(e.source);
    train_tokens = tokens;
    if (const auto end = text_tokenizer.end_of_text()) end_token = static_cast<int64_t>(*end);
    begin_token = end_token.value_or(0);
    const bool balanced = config.classify.class_weights == "balanced";
    if (config.task == Task::kClassify && balanced) weigh_classes();
  }
  std::unique_ptr<BatchSource> train_batches() const override {
    return batches(data::Split::kTrain, train_, /*shuffle=*/true);
  }
  std::unique_ptr<BatchSource> valid_batches() const override {
    if (!generator_ && valid_->examples.empty()) return nullptr;
    return batches(data::Split::kValidation, valid_, /*shuffle=*/false);
  }

 private:
  std::unique_ptr<BatchSource> batches(data::Split split,
                                       const std::shared_ptr<const data::ExampleSet>& set,
                                       bool shuffle) const {
    const ToBatch to_batch = [classes = !labels.empty(),
                              begin = begin_token](const data::ExampleSet& e) {
      return classes ? classification_batch(e) : summarization_batch(e, begin);
    };
    if (generator_) {
      return std::make_unique<GeneratedBatches>(data::ExampleRows(generator_, split, options_),
                                                to_batch);
    }
    data::RowOptions options = options_;
    options.shuffle = shuffle;
    return std::make_unique<ReadBatches>(set, options, to_batch);
  }

  void weigh_classes() {
    std::vector<float> counts(labels.size(), 0.0F);
    for (const data::Example& e : train_->examples) counts[static_cast<size_t>(e.label)] += 1;
    const auto total = static_cast<float>(train_->examples.size());
    for (float& count : counts) {
      count = total / (static_cast<float>(labels.size()) * std::max(count, 1.0F));
    }
    class_weights = torch::tensor(counts);
  }

  std::shared_ptr<const data::ExampleTask> generator_;  // null if read from files
  std::shared_ptr<const data::ExampleSet> train_, valid_;
  data::RowOptions options_;
};

}  // namespace

std::unique_ptr<TaskData> generate_example_data(std::shared_ptr<const data::ExampleTask> generator,
                                                const RunConfig& config) {
  return std::make_unique<ExampleData>(std::move(generator), config);
}

std::unique_ptr<TaskData> read_example_data(const RunConfig& config,
                                            const io::Tokenizer& tokenizer) {
  const auto kind =
      config.task == Task::kClassify ? io::RecordKind::kLabelled : io::RecordKind::kSummary;
  if (config.task == Task::kSummarize && !tokenizer.end_of_text()) {
    throw ConfigError(
        "data.tokenizer: expected a tokenizer with an end-of-text token, which begins and ends "
        "summaries, got '" +
        config.data.tokenizer + "' without one");
  }
  data::ExampleOptions options;
  options.skip_bad = config.data.skip_bad;
  options.max_source_tokens = static_cast<size_t>(config.train.seq_len);
  options.max_target_tokens = static_cast<size_t>(config.summarize.max_summary);
  data::ReadReport report;
  data::ExampleSet train =
      data::read_examples(config.data.train, kind, tokenizer, options, &report);
  if (config.task == Task::kClassify && train.label_names.size() < 2) {
    throw io::Error(config.data.train, "expected texts with at least 2 labels, got " +
                                           std::to_string(train.label_names.size()));
  }
  uint64_t skipped = report.skipped, truncated = train.truncated;
  std::pair<data::ExampleSet, data::ExampleSet> sets;
  if (config.data.valid.empty()) {
    sets = train.split(config.data.valid_fraction, static_cast<uint64_t>(config.seed));
  } else {
    options.label_names = train.label_names;
    sets.second = data::read_examples(config.data.valid, kind, tokenizer, options, &report);
    skipped += report.skipped;
    truncated += sets.second.truncated;
    sets.first = std::move(train);
  }
  auto result = std::make_unique<ExampleData>(std::move(sets), tokenizer, config);
  result->skipped_lines = skipped;
  result->truncated = truncated;
  return result;
}

}  // namespace diffattn::train
