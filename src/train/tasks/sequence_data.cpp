// SPDX-License-Identifier: Apache-2.0
#include "train/tasks/sequence_data.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "diffattn/io/json.h"
#include "train/tasks/row_options.h"

namespace diffattn::train {
namespace {

class SequenceBatches final : public BatchSource {
 public:
  explicit SequenceBatches(data::TaskRows rows) : rows_(std::move(rows)) {}
  Batch next() override { return sequence_batch(rows_.next()); }
  std::string position() const override { return rows_.position(); }
  void seek(const std::string& position) override { rows_.seek(position); }

 private:
  data::TaskRows rows_;
};

/// Takes the batches of `updates` updates from `first`, then all others from `second`. An update
/// has `accumulate` batches.
class StagedBatches final : public BatchSource {
 public:
  StagedBatches(std::unique_ptr<BatchSource> first, int64_t updates, int64_t accumulate,
                std::unique_ptr<BatchSource> second)
      : first_(std::move(first)),
        second_(std::move(second)),
        updates_(updates),
        accumulate_(accumulate) {}
  Batch next() override {
    return done_++ < updates_ * accumulate_ ? first_->next() : second_->next();
  }
  std::string position() const override {
    const nlohmann::json place{{"done", done_},
                               {"accumulate", accumulate_},
                               {"first", first_->position()},
                               {"second", second_->position()}};
    return place.dump();
  }
  void seek(const std::string& position) override {
    const auto json = io::parse_json(position, "position");
    const io::JsonValue place(json, "position");
    first_->seek(place.at("first").to_string());
    second_->seek(place.at("second").to_string());
    // The run may have had other micro-batches. Earlier versions did not write their number.
    const auto accumulate = place.find("accumulate");
    done_ = place.at("done").to_int(0) * accumulate_ /
            (accumulate ? accumulate->to_int(1) : accumulate_);
  }

 private:
  std::unique_ptr<BatchSource> first_, second_;
  int64_t updates_, accumulate_, done_ = 0;  // done_ counts batches
};

class SequenceData final : public TaskData {
 public:
  explicit SequenceData(const RunConfig& config)
      : generator_(sequence_task(config)),
        options_(row_options(config)),
        batch_size_(config.train.batch_size),
        accumulate_(config.train.accumulate) {
    const RunConfig::Curriculum& c = config.curriculum;
    if (config.task != Task::kNeedle || c.steps == 0) return;
    add_stage(config, c.length, c.steps);
    std::vector<int64_t> grown;
    for (int64_t length = 2 * c.length; length < config.needle.length; length *= 2) {
      grown.push_back(length);
    }
    for (const int64_t length : grown) {
      add_stage(config, length, c.growth_steps / std::ssize(grown));
    }
  }
  std::unique_ptr<BatchSource> train_batches() const override {
    auto rest = batches(data::Split::kTrain);
    for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
      // Shorter rows, about as many tokens. The number of rows does not depend on the processes.
      const int64_t rows = batch_size_ * generator_->length() / stage->generator->length();
      auto batches = std::make_unique<SequenceBatches>(
          data::TaskRows(stage->generator, data::Split::kTrain, options_, rows));
      rest = std::make_unique<StagedBatches>(std::move(batches), stage->updates, accumulate_,
                                             std::move(rest));
    }
    return rest;
  }
  std::unique_ptr<BatchSource> valid_batches() const override {
    return batches(data::Split::kValidation);
  }

 private:
  struct Stage {
    std::shared_ptr<const data::SequenceTask> generator;
    int64_t updates;
  };

  void add_stage(const RunConfig& config, int64_t length, int64_t steps) {
    data::NeedleOptions shorter = config.needle;
    shorter.length = length;
    stages_.push_back({data::needle_task(shorter), steps});
  }

  std::unique_ptr<BatchSource> batches(data::Split split) const {
    return std::make_unique<SequenceBatches>(data::TaskRows(generator_, split, options_));
  }

  std::shared_ptr<const data::SequenceTask> generator_;
  std::vector<Stage> stages_;  // of the curriculum, before the full length
  data::RowOptions options_;
  int64_t batch_size_, accumulate_;
};

}  // namespace

std::unique_ptr<TaskData> generate_sequence_data(const RunConfig& config) {
  return std::make_unique<SequenceData>(config);
}

}  // namespace diffattn::train
