// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/task_data.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "diffattn/data/tensors.h"
#include "diffattn/io/error.h"
#include "diffattn/io/json.h"
#include "train/language_data.h"
#include "train/new_model.h"
#include "train/sections.h"

namespace diffattn::train {
namespace {

using data::ExampleSet;
using torch::Tensor;

data::RowOptions row_options(const RunConfig& config) {
  data::RowOptions options;
  options.seq_len = config.train.seq_len;
  options.batch_size = config.train.batch_size;
  options.seed = static_cast<uint64_t>(config.seed);
  return options;
}

class LanguageTaskData final : public TaskData {
 public:
  LanguageTaskData(const RunConfig& config, const io::Tokenizer& text_tokenizer)
      : data_(config, text_tokenizer) {
    tokenizer = text_tokenizer;
    train_tokens = data_.train_tokens();
    skipped_lines = data_.skipped_lines();
  }
  std::unique_ptr<BatchSource> train_batches() const override { return data_.train_batches(); }
  std::unique_ptr<BatchSource> valid_batches() const override { return data_.valid_batches(); }

 private:
  LanguageData data_;
};

class SequenceBatches final : public BatchSource {
 public:
  explicit SequenceBatches(data::TaskRows rows) : rows_(std::move(rows)) {}
  Batch next() override { return batch_of(rows_.next()); }
  std::string position() const override { return rows_.position(); }
  void seek(const std::string& position) override { rows_.seek(position); }

 private:
  data::TaskRows rows_;
};

/// `first` for a number of batches, then `second`.
class StagedBatches final : public BatchSource {
 public:
  StagedBatches(std::unique_ptr<BatchSource> first, int64_t count,
                std::unique_ptr<BatchSource> second)
      : first_(std::move(first)), second_(std::move(second)), count_(count) {}
  Batch next() override { return done_++ < count_ ? first_->next() : second_->next(); }
  std::string position() const override {
    const nlohmann::json place{
        {"done", done_}, {"first", first_->position()}, {"second", second_->position()}};
    return place.dump();
  }
  void seek(const std::string& position) override {
    const auto json = io::parse_json(position, "position");
    const io::JsonValue place(json, "position");
    first_->seek(place.at("first").to_string());
    second_->seek(place.at("second").to_string());
    done_ = place.at("done").to_int(0);
  }

 private:
  std::unique_ptr<BatchSource> first_, second_;
  int64_t count_, done_ = 0;
};

class SequenceTaskData final : public TaskData {
 public:
  explicit SequenceTaskData(const RunConfig& config)
      : task_(sequence_task(config)), options_(row_options(config)) {
    const RunConfig::Curriculum& c = config.curriculum;
    if (config.task != "needle" || c.steps == 0) return;
    add_stage(config, c.length, c.steps);
    std::vector<int64_t> grown;
    for (int64_t length = 2 * c.length; length < config.needle.length; length *= 2) {
      grown.push_back(length);
    }
    for (const int64_t length : grown)
      add_stage(config, length, c.growth_steps / std::ssize(grown));
  }
  std::unique_ptr<BatchSource> train_batches() const override {
    auto rest = batches(data::Split::kTrain);
    for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
      data::RowOptions options = options_;  // as many tokens in a batch
      options.batch_size = options.batch_size * task_->length() / stage->task->length();
      rest = std::make_unique<StagedBatches>(std::make_unique<SequenceBatches>(data::TaskRows(
                                                 stage->task, data::Split::kTrain, options)),
                                             stage->batches, std::move(rest));
    }
    return rest;
  }
  std::unique_ptr<BatchSource> valid_batches() const override {
    return batches(data::Split::kValidation);
  }

 private:
  struct Stage {
    std::shared_ptr<const data::SequenceTask> task;
    int64_t batches;
  };

  void add_stage(const RunConfig& config, int64_t length, int64_t steps) {
    data::NeedleOptions shorter = config.needle;
    shorter.length = length;
    stages_.push_back({data::needle_task(shorter), steps * config.train.accumulate});
  }

  std::unique_ptr<BatchSource> batches(data::Split split) const {
    return std::make_unique<SequenceBatches>(data::TaskRows(task_, split, options_));
  }

  std::shared_ptr<const data::SequenceTask> task_;
  std::vector<Stage> stages_;  // before the whole task
  data::RowOptions options_;
};

/// How examples become a batch.
using ToBatch = std::function<Batch(const ExampleSet&)>;

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
  ReadBatches(std::shared_ptr<const ExampleSet> set, const data::RowOptions& options,
              ToBatch to_batch)
      : set_(std::move(set)),
        order_(set_->examples.size(), options),
        to_batch_(std::move(to_batch)) {}
  Batch next() override {
    ExampleSet chosen;
    for (const uint64_t i : order_.next()) chosen.examples.push_back(set_->examples[i]);
    return to_batch_(chosen);
  }
  std::string position() const override { return order_.position(); }
  void seek(const std::string& position) override { order_.seek(position); }

 private:
  std::shared_ptr<const ExampleSet> set_;
  data::ShuffledIndices order_;
  ToBatch to_batch_;
};

/// Classification and summarisation, from a task or from files.
class ExampleTaskData final : public TaskData {
 public:
  ExampleTaskData(std::shared_ptr<const data::ExampleTask> task, const RunConfig& config)
      : task_(std::move(task)), options_(row_options(config)) {
    const auto names = task_->examples(0, data::Split::kTrain, 0, 0).label_names;
    labels = names;
    begin_token = data::kTaskMark;
    end_token = data::kTaskEnd;
  }
  ExampleTaskData(std::pair<ExampleSet, ExampleSet> sets, const io::Tokenizer& text_tokenizer,
                  const RunConfig& config)
      : train_(std::make_shared<ExampleSet>(std::move(sets.first))),
        valid_(std::make_shared<ExampleSet>(std::move(sets.second))),
        options_(row_options(config)) {
    tokenizer = text_tokenizer;
    labels = train_->label_names;
    int64_t tokens = 0;
    for (const data::Example& e : train_->examples) tokens += std::ssize(e.source);
    train_tokens = tokens;
    if (const auto end = text_tokenizer.end_of_text()) end_token = static_cast<int64_t>(*end);
    begin_token = end_token.value_or(0);
    if (config.task == "classify" && config.classify.class_weights == "balanced") weigh_classes();
  }
  std::unique_ptr<BatchSource> train_batches() const override {
    return batches(data::Split::kTrain, train_, /*shuffle=*/true);
  }
  std::unique_ptr<BatchSource> valid_batches() const override {
    if (!task_ && valid_->examples.empty()) return nullptr;
    return batches(data::Split::kValidation, valid_, /*shuffle=*/false);
  }

 private:
  std::unique_ptr<BatchSource> batches(data::Split split,
                                       const std::shared_ptr<const ExampleSet>& set,
                                       bool shuffle) const {
    const ToBatch to_batch = [classes = !labels.empty(), begin = begin_token](const ExampleSet& e) {
      return classes ? classification_batch(e) : summarization_batch(e, begin);
    };
    if (task_) {
      return std::make_unique<GeneratedBatches>(data::ExampleRows(task_, split, options_),
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

  std::shared_ptr<const data::ExampleTask> task_;  // null: from files
  std::shared_ptr<const ExampleSet> train_, valid_;
  data::RowOptions options_;
};

std::unique_ptr<TaskData> read_example_task(const RunConfig& config,
                                            const io::Tokenizer& tokenizer) {
  const auto kind =
      config.task == "classify" ? io::RecordKind::kLabelled : io::RecordKind::kSummary;
  if (config.task == "summarize" && !tokenizer.end_of_text()) {
    throw ConfigError(
        "data.tokenizer: expected one with an end-of-text token, between which summaries stand, "
        "got '" +
        config.data.tokenizer + "' without");
  }
  data::ExampleOptions options;
  options.skip_bad = config.data.skip_bad;
  options.max_source_tokens = static_cast<size_t>(config.train.seq_len);
  options.max_target_tokens = static_cast<size_t>(config.summarize.max_summary);
  data::ReadReport report;
  ExampleSet train = data::read_examples(config.data.train, kind, tokenizer, options, &report);
  if (config.task == "classify" && train.label_names.size() < 2) {
    throw io::Error(config.data.train, "expected texts with at least 2 labels, got " +
                                           std::to_string(train.label_names.size()));
  }
  uint64_t skipped = report.skipped, truncated = train.truncated;
  std::pair<ExampleSet, ExampleSet> sets;
  if (config.data.valid.empty()) {
    sets = train.split(config.data.valid_fraction, static_cast<uint64_t>(config.seed));
  } else {
    options.label_names = train.label_names;
    sets.second = data::read_examples(config.data.valid, kind, tokenizer, options, &report);
    skipped += report.skipped;
    truncated += sets.second.truncated;
    sets.first = std::move(train);
  }
  auto result = std::make_unique<ExampleTaskData>(std::move(sets), tokenizer, config);
  result->skipped_lines = skipped;
  result->truncated = truncated;
  return result;
}

/// Fills in model.vocab_size for ids below `size`, and all that the config leaves open.
void set_vocabulary(RunConfig& config, int64_t size, const char* whose) {
  if (config.model.vocab_size == 0) config.model.vocab_size = size;
  if (config.model.vocab_size < size) {
    throw ConfigError(std::string("model.vocab_size: expected at least the ") + whose + " " +
                      std::to_string(size) + ", got " + std::to_string(config.model.vocab_size));
  }
  config.resolve();
}

/// A task without a file to read, or null.
std::unique_ptr<TaskData> generated_task(RunConfig& config) {
  if (const auto task = sequence_task(config)) {
    set_vocabulary(config, task->vocab_size(), "task's");
    return std::make_unique<SequenceTaskData>(config);
  }
  if (!config.data.train.empty() || config.task == "lm") return nullptr;
  const std::shared_ptr<const data::ExampleTask> task = with_section(config.task, [&] {
    return config.task == "classify" ? data::noisy_text_task(config.classify.text)
                                     : data::select_task(config.summarize.select);
  });
  set_vocabulary(config, task->vocab_size(), "task's");
  return std::make_unique<ExampleTaskData>(task, config);
}

nn::ModelConfig classifier_config(const RunConfig& config, const TaskData& data) {
  nn::ModelConfig c = model_config_of(config);
  c.kind =
      config.classify.backbone == "encoder" ? nn::ModelKind::kEncoder : nn::ModelKind::kDecoder;
  c.labels = data.labels;
  c.classifier_pooling = config.classify.pooling;
  c.classifier_dropout = config.classify.dropout;
  c.classifier_hidden_size = config.classify.head_size;
  return c;
}

nn::ModelConfig summarizer_config(const RunConfig& config, const TaskData& data) {
  nn::ModelConfig c = model_config_of(config);
  c.kind = nn::ModelKind::kEncoderDecoder;
  c.num_encoder_layers = config.model.num_hidden_layers;
  if (config.summarize.decoder_layers > 0) c.num_hidden_layers = config.summarize.decoder_layers;
  c.decoder_start_token_id = data.begin_token;
  c.eos_token_id = data.end_token;
  return c;
}

}  // namespace

std::shared_ptr<const data::SequenceTask> sequence_task(const RunConfig& config) {
  if (config.task != "needle" && config.task != "recall") return nullptr;
  return with_section(config.task, [&] {
    return config.task == "needle" ? data::needle_task(config.needle)
                                   : data::recall_task(config.recall);
  });
}

std::unique_ptr<TaskData> open_task(RunConfig& config) {
  if (auto generated = generated_task(config)) return generated;
  const io::Tokenizer tokenizer = tokenizer_for(config);
  set_vocabulary(config, static_cast<int64_t>(tokenizer.vocab_size()), "tokenizer's");
  if (config.task == "lm") return std::make_unique<LanguageTaskData>(config, tokenizer);
  return read_example_task(config, tokenizer);
}

std::shared_ptr<TaskModel> new_task_model(const RunConfig& config, const TaskData& data) {
  torch::manual_seed(static_cast<uint64_t>(config.seed));
  if (config.task == "classify") {
    return classifier_model(Classifier(classifier_config(config, data)), data.class_weights);
  }
  if (config.task == "summarize") {
    return summarizer_model(nn::EncoderDecoder(summarizer_config(config, data)));
  }
  return language_model(new_model(config));
}

Batch batch_of(const data::RowBatch& rows) {
  Batch batch;
  batch.ids = data::to_tensor(rows.ids).view({rows.rows, rows.seq_len});
  batch.labels = data::to_tensor(rows.labels).view({rows.rows, rows.seq_len});
  batch.answer_rows = (batch.labels.flatten() != data::kIgnoredLabel).nonzero().squeeze(1);
  return batch;
}

namespace {

/// Sources padded on the right: ids and mask.
Batch source_batch(const ExampleSet& set, std::vector<uint64_t>& all) {
  all.resize(set.examples.size());
  std::iota(all.begin(), all.end(), uint64_t{0});
  const auto padded = data::to_tensors(data::pad_sources(set, all, data::kTaskPad));
  Batch batch;
  batch.ids = padded.ids;
  batch.mask.key_lengths(padded.lengths);
  return batch;
}

}  // namespace

Batch classification_batch(const ExampleSet& set) {
  std::vector<uint64_t> all;
  Batch batch = source_batch(set, all);
  batch.labels = data::to_tensor(data::class_labels(set, all));
  return batch;
}

Batch summarization_batch(const ExampleSet& set, int64_t begin_token) {
  std::vector<uint64_t> all;
  Batch batch = source_batch(set, all);
  const auto begin = static_cast<io::TokenId>(begin_token);
  batch.target_ids = data::to_tensors(data::pad_targets(set, all, begin, data::kTaskPad)).ids;
  batch.labels = data::to_tensor(data::target_labels(set, all)).view_as(batch.target_ids);
  return batch;
}

}  // namespace diffattn::train
