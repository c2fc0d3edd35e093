// SPDX-License-Identifier: Apache-2.0
#include "data/position.h"
#include "data/tasks/draw.h"
#include "diffattn/data/tasks.h"

namespace diffattn::data {
namespace {

constexpr char kSequenceRows[] = "task rows";
constexpr char kExampleRows[] = "task examples";

std::vector<PositionField> rows_identity(const SequenceTask& task, Split split,
                                         const RowOptions& options) {
  return {{"seed", options.seed},
          {"split", static_cast<uint64_t>(split)},
          {"length", static_cast<uint64_t>(task.length())},
          {"vocab_size", static_cast<uint64_t>(task.vocab_size())}};
}

std::vector<PositionField> rows_identity(const ExampleTask& task, Split split,
                                         const RowOptions& options) {
  return {{"seed", options.seed},
          {"split", static_cast<uint64_t>(split)},
          {"classes", static_cast<uint64_t>(task.classes())},
          {"vocab_size", static_cast<uint64_t>(task.vocab_size())}};
}

void expect_ranks(const RowOptions& options) {
  expect_option("batch_size", options.batch_size, 1, kMostOfATask);
  expect_option("world_size", options.world_size, 1, kMostOfATask);
  expect_option("rank", options.rank, 0, options.world_size - 1);
}

}  // namespace

TaskRows::TaskRows(std::shared_ptr<const SequenceTask> task, Split split, const RowOptions& options,
                   int64_t all_rows)
    : task_(std::move(task)), split_(split), options_(options), all_rows_(all_rows) {
  expect_ranks(options);
  if (all_rows_ == 0) all_rows_ = options.batch_size * options.world_size;
  expect_option("all_rows", all_rows_, options.world_size, kMostOfATask * options.world_size);
  const int64_t most = (all_rows_ + options.world_size - 1) / options.world_size;  // on a rank
  expect_option("batch_size times length", most * task_->length(), 1, 0x7fffffff);
}

RowBatch TaskRows::next() {
  const int64_t ranks = options_.world_size;
  RowBatch batch;
  batch.rows = (all_rows_ - options_.rank + ranks - 1) / ranks;
  batch.seq_len = batch.max_segment = task_->length();
  batch.cu_seqlens.push_back(0);
  const auto tokens = static_cast<size_t>(batch.rows * batch.seq_len);
  for (auto* values : {&batch.ids, &batch.labels, &batch.positions}) values->reserve(tokens);
  for (int64_t row = options_.rank; row < all_rows_; row += ranks) {
    const TaskSequence sequence =
        task_->example(options_.seed, split_, taken_ + static_cast<uint64_t>(row));
    batch.ids.insert(batch.ids.end(), sequence.ids.begin(), sequence.ids.end());
    batch.labels.insert(batch.labels.end(), sequence.labels.begin(), sequence.labels.end());
    for (int64_t i = 0; i < batch.seq_len; ++i) batch.positions.push_back(i);
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.ids.size()));
  }
  taken_ += static_cast<uint64_t>(all_rows_);
  return batch;
}

std::string TaskRows::position() const {
  return write_position(kSequenceRows, {{"taken", taken_}},
                        rows_identity(*task_, split_, options_));
}

void TaskRows::seek(const std::string& position) {
  taken_ =
      read_position(position, kSequenceRows, {"taken"}, rows_identity(*task_, split_, options_))
          .at(0);
}

ExampleRows::ExampleRows(std::shared_ptr<const ExampleTask> task, Split split,
                         const RowOptions& options)
    : task_(std::move(task)), split_(split), options_(options) {
  expect_ranks(options);
}

ExampleSet ExampleRows::next() {
  ExampleSet set = task_->examples(options_.seed, split_, 0, 0);
  const auto ranks = static_cast<uint64_t>(options_.world_size);
  for (int64_t row = 0; row < options_.batch_size; ++row, taken_ += ranks) {
    set.examples.push_back(
        task_->example(options_.seed, split_, taken_ + static_cast<uint64_t>(options_.rank)));
  }
  return set;
}

std::string ExampleRows::position() const {
  return write_position(kExampleRows, {{"taken", taken_}}, rows_identity(*task_, split_, options_));
}

void ExampleRows::seek(const std::string& position) {
  taken_ = read_position(position, kExampleRows, {"taken"}, rows_identity(*task_, split_, options_))
               .at(0);
}

}  // namespace diffattn::data
