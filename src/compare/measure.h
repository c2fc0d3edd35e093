// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "compare/compare.h"
#include "diffattn/train/task_data.h"
#include "diffattn/train/task_model.h"
#include "diffattn/train/trainer.h"

// PRIVATE header: what is measured on a trained model.

namespace diffattn::compare {

/// A model with all that belongs to it.
struct Trained {
  train::RunConfig config;
  std::unique_ptr<train::TaskData> data;
  std::unique_ptr<train::BatchSource> batches;
  std::unique_ptr<train::Trainer> trainer;
};

/// Every number of needles up to 6 that the task has room for, at five depths; in float32, whatever
/// the training's type.
std::vector<NeedleCell> measure_needles(train::TaskModel& model, const train::RunConfig& config,
                                        int64_t samples);

/// Attention logits and hidden states of a causal model on one batch, in float32; leaves `result`
/// as it is for other models and for packed batches (task lm).
void measure_outliers(train::TaskModel& model, const train::Batch& batch, RunResult& result);

/// step_seconds and step_bytes of each, updates in turn. Changes the models.
void measure_speed(std::vector<Trained>& trained, Comparison& comparison);

/// Maps of every model on one generated example.
void draw_example(std::vector<Trained>& trained, Comparison& comparison);

}  // namespace diffattn::compare
