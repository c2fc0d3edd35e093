// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <limits>
#include <memory>

#include "diffattn/nn/decoder.h"
#include "diffattn/train/adamw.h"
#include "diffattn/train/batch.h"
#include "diffattn/train/run_config.h"
#include "diffattn/train/task_model.h"

namespace diffattn::train {

class FlopCounter;
struct Schedule;

/// How far a run is. Saved with every checkpoint.
struct Progress {
  int64_t step = 0;     // updates done or skipped
  int64_t tokens = 0;   // labels that counted
  int64_t skipped = 0;  // updates left out because something was not finite
  int64_t skipped_in_row = 0;
  double best_valid_loss = std::numeric_limits<double>::infinity();
};

/// What one update did.
struct StepReport {
  int64_t step = 0;  // after it
  double loss = 0, gradient_norm = 0, learning_rate = 0;
  bool skipped = false;
  int64_t tokens = 0;  // of this update
  double seconds = 0;
  double flops = 0;        // that the model needs for it, see FlopCounter
  double utilisation = 0;  // share of what the device can do that went into these
};

/// Model, optimiser and schedule: one update at a time, on the device and in the type the config
/// names. Knows nothing of files and terminals.
class Trainer {
 public:
  /// The model is moved to the config's device. The config is resolved.
  Trainer(std::shared_ptr<TaskModel> model, const RunConfig& config);
  Trainer(nn::CausalLM model, const RunConfig& config);
  ~Trainer();

  /// config.train.accumulate micro-batches and one update. When the loss or the gradient is not
  /// finite, parameters and optimiser stay as they were and the report says `skipped`.
  StepReport step(BatchSource& source);

  TaskModel& task() { return *model_; }
  std::shared_ptr<torch::nn::Module> model() { return model_->module(); }
  AdamW& optimizer() { return optimizer_; }
  Progress progress;

 private:
  struct Loss {
    torch::Tensor value;  // what is differentiated
    torch::Tensor count;  // labels that counted
  };
  Loss loss_of(const Batch& batch);
  void warm_up_lambda();

  RunConfig config_;
  torch::Device device_;
  std::shared_ptr<TaskModel> model_;
  AdamW optimizer_;
  std::unique_ptr<const Schedule> schedule_;
  std::unique_ptr<const FlopCounter> flops_;
  double peak_flops_;
};

}  // namespace diffattn::train
