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

/// Takes `count` batches from `first`, then all others from `second`.
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

class SequenceData final : public TaskData {
 public:
  explicit SequenceData(const RunConfig& config)
      : generator_(sequence_task(config)), options_(row_options(config)) {
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
      data::RowOptions options = options_;  // shorter rows, about as many tokens
      options.batch_size = options.batch_size * generator_->length() / stage->generator->length();
      rest = std::make_unique<StagedBatches>(std::make_unique<SequenceBatches>(data::TaskRows(
                                                 stage->generator, data::Split::kTrain, options)),
                                             stage->batches, std::move(rest));
    }
    return rest;
  }
  std::unique_ptr<BatchSource> valid_batches() const override {
    return batches(data::Split::kValidation);
  }

 private:
  struct Stage {
    std::shared_ptr<const data::SequenceTask> generator;
    int64_t batches;
  };

  void add_stage(const RunConfig& config, int64_t length, int64_t steps) {
    data::NeedleOptions shorter = config.needle;
    shorter.length = length;
    stages_.push_back({data::needle_task(shorter), steps * config.train.accumulate});
  }

  std::unique_ptr<BatchSource> batches(data::Split split) const {
    return std::make_unique<SequenceBatches>(data::TaskRows(generator_, split, options_));
  }

  std::shared_ptr<const data::SequenceTask> generator_;
  std::vector<Stage> stages_;  // of the curriculum, before the full length
  data::RowOptions options_;
};

}  // namespace

std::unique_ptr<TaskData> generate_sequence_data(const RunConfig& config) {
  return std::make_unique<SequenceData>(config);
}

}  // namespace diffattn::train
