// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "diffattn/data/tasks.h"
#include "diffattn/io/tokenizer.h"
#include "diffattn/train/batch.h"
#include "diffattn/train/run_config.h"
#include "diffattn/train/task_model.h"

namespace diffattn::train {

/// The training and validation data of a run.
class TaskData {
 public:
  virtual ~TaskData() = default;
  virtual std::unique_ptr<BatchSource> train_batches() const = 0;
  /// Returns batches that always come in the same order, or null if there is no validation data.
  virtual std::unique_ptr<BatchSource> valid_batches() const = 0;

  std::optional<io::Tokenizer> tokenizer;  // none if the task generates token ids
  std::optional<int64_t> train_tokens;     // none if the task generates data without end
  uint64_t skipped_lines = 0;              // bad lines, skipped because of data.skip_bad
  std::vector<std::string> skipped_files;  // in data folders, because they are not text
  /// Number of examples whose source was longer than train.seq_len or whose summary was longer than
  /// summarize.max_summary.
  uint64_t truncated = 0;
  std::vector<std::string> labels;  // names of the classes
  torch::Tensor class_weights;      // [classes] float32, or undefined
  int64_t begin_token = 0;          // first input of the decoder of a summariser
  std::optional<int64_t> end_token;
};

/// Reads or generates the data of config.task, fills in config.model.vocab_size and resolves the
/// config. Throws io::Error, and ConfigError if data.train is missing.
std::unique_ptr<TaskData> open_task_data(RunConfig& config);

/// Returns the generator of sequences for Task::kNeedle and Task::kRecall, null for other tasks.
std::shared_ptr<const data::SequenceTask> sequence_task(const RunConfig& config);

/// Returns a model for config.task with random weights from config.seed. The same config gives the
/// same bits.
std::shared_ptr<TaskModel> new_task_model(const RunConfig& config, const TaskData& data);

}  // namespace diffattn::train
