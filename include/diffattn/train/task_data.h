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

/// What a run learns from.
class TaskData {
 public:
  virtual ~TaskData() = default;
  virtual std::unique_ptr<BatchSource> train_batches() const = 0;
  /// Always in the same order; null when there is nothing to validate on.
  virtual std::unique_ptr<BatchSource> valid_batches() const = 0;

  std::optional<io::Tokenizer> tokenizer;  // none: the task is generated, in ids
  std::optional<int64_t> train_tokens;     // none: endless
  uint64_t skipped_lines = 0;              // bad ones that data.skip_bad passed over
  uint64_t truncated = 0;                  // texts that were longer than train.seq_len
  std::vector<std::string> labels;         // of a classification
  torch::Tensor class_weights;             // [classes] float32 or undefined
  int64_t begin_token = 0;                 // of summaries
  std::optional<int64_t> end_token;
};

/// Reads or generates what config.task names, fills in config.model.vocab_size and resolves the
/// config. Throws io::Error, and ConfigError when data.train is missing.
std::unique_ptr<TaskData> open_task(RunConfig& config);

/// The task of a config that generates sequences (needle, recall); null for others.
std::shared_ptr<const data::SequenceTask> sequence_task(const RunConfig& config);

/// A model for the task, drawn from the config's seed: the same config gives the same bits.
std::shared_ptr<TaskModel> new_task_model(const RunConfig& config, const TaskData& data);

/// Sequences of a task, one per row, [B, N].
Batch batch_of(const data::RowBatch& rows);
/// Texts and classes, padded on the right.
Batch classification_batch(const data::ExampleSet& set);
/// Documents and summaries, padded on the right; summaries begin with `begin_token`.
Batch summarization_batch(const data::ExampleSet& set, int64_t begin_token);

}  // namespace diffattn::train
