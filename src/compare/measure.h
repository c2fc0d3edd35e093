// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "compare/compare.h"
#include "diffattn/train/task_data.h"
#include "diffattn/train/task_model.h"
#include "diffattn/train/trainer.h"

namespace diffattn::compare {

/// A trained model with its data.
struct Trained {
  train::RunConfig config;
  std::unique_ptr<train::TaskData> data;
  std::unique_ptr<train::BatchSource> batches;
  std::unique_ptr<train::Trainer> trainer;
  bool from_file = false;  // the result comes from an earlier comparison; the weights are new
};

/// Measures 1, 2, 4 and 6 needles, as far as the task has room for them, at five depths. It
/// computes in float32 for every train.dtype.
std::vector<NeedleCell> measure_needles(train::TaskModel& model, const train::RunConfig& config,
                                        int64_t samples);

/// Measures attention logits and hidden states of a causal model on one batch, in float32. Does
/// nothing for other models and for packed batches.
void measure_outliers(train::TaskModel& model, const train::Batch& batch, RunResult& result);

/// Measures step_seconds, with the models taking turns, and step_bytes. Continues the training.
void measure_speed(std::vector<Trained>& trained, Comparison& comparison);

/// Adds the attention of every model on one validation example, and the example in words, to
/// `comparison`.
void draw_example(std::vector<Trained>& trained, Comparison& comparison);

}  // namespace diffattn::compare
