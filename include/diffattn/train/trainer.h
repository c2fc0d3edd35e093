// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "diffattn/nn/decoder.h"
#include "diffattn/parallel/collective.h"
#include "diffattn/train/adamw.h"
#include "diffattn/train/batch.h"
#include "diffattn/train/evaluate.h"
#include "diffattn/train/run_config.h"
#include "diffattn/train/task_model.h"

namespace diffattn::train {

class ContextParallel;
class DataParallel;
class FlopCounter;
class LayerWeights;
struct Schedule;
class WorkingCopy;

/// The progress of a training. Every checkpoint stores it.
struct TrainingState {
  int64_t step = 0;     // updates done or skipped
  int64_t tokens = 0;   // labels that counted
  int64_t skipped = 0;  // updates skipped because the loss or the gradient was not finite
  int64_t skipped_in_row = 0;
  double best_valid_loss = std::numeric_limits<double>::infinity();
};

/// The result of one update.
struct StepReport {
  int64_t step = 0;  // TrainingState::step after the update
  double loss = 0, gradient_norm = 0, learning_rate = 0;
  bool skipped = false;
  int64_t tokens = 0;        // labels that counted in this update
  int64_t model_tokens = 0;  // tokens that went through the model, with padding
  double seconds = 0;
  double flops = 0;  // floating-point operations of the model, without recomputation
  /// flops / seconds as a share of the peak (train.peak_tflops), at most 1: an update that is
  /// faster than the peak becomes the peak.
  double utilisation = 0;
};

/// Trains a model one update at a time, on the device and in the dtype of the config. It does not
/// touch files or the terminal.
///
/// The loss of an update is the mean over the labels of all its micro-batches.
///
/// Several processes share the rows of every micro-batch: each has a `source` of its own part.
/// Losses, norms and updates equal those of one process up to rounding.
class Trainer {
 public:
  /// Moves the model to the config's device. The config must be resolved.
  Trainer(std::shared_ptr<TaskModel> model, const RunConfig& config,
          std::shared_ptr<parallel::Collective> world = parallel::one_process());
  Trainer(nn::CausalLM model, const RunConfig& config);
  ~Trainer();

  /// Runs config.train.accumulate micro-batches and one update. If the loss or the gradient is not
  /// finite, it skips the update: parameters and optimiser do not change.
  StepReport step(BatchSource& source);

  /// Does the same in two halves, so that a GPU need not wait for the host between updates: begin()
  /// enqueues an update, and finish() waits for the oldest one that is not finished and reports it.
  /// `state` counts finished updates. Begin the next update before you finish the last one, and
  /// finish all before you read or write parameters.
  void begin(BatchSource& source);
  StepReport finish();
  /// Returns the number of updates that are begun and not finished.
  int64_t pending() const;

  /// Evaluates the model on this process's part of a batch. All ranks must call it. The results of
  /// all ranks add up to those of the whole batch.
  Evaluation evaluate(const Batch& batch);

  /// A scope in which rank 0 (with `everywhere`, every rank) has all weights, although
  /// train.shard = "parameters" divides them, so that it can read them outside of the model's
  /// forward. All ranks must construct one at the same time.
  class WholeWeights {
   public:
    explicit WholeWeights(Trainer& trainer, bool everywhere = false);
    WholeWeights(const WholeWeights&) = delete;
    WholeWeights& operator=(const WholeWeights&) = delete;
    ~WholeWeights();
    /// Makes weights that the caller changed on every rank those of all later steps.
    void take();

   private:
    LayerWeights* layers_;
  };

  TaskModel& task_model() { return *model_; }
  std::shared_ptr<torch::nn::Module> model() { return model_->module(); }
  AdamW& optimizer() { return optimizer_; }
  /// Returns this process's part of the optimiser's state. A single process returns all of it, and
  /// the tensors share memory with the optimiser. With train.shard each rank returns pieces of
  /// flattened tensors; all pieces, in the order of the ranks, are the whole state. Without it,
  /// rank 0 returns the whole state and the others nothing.
  std::vector<std::pair<std::string, torch::Tensor>> optimizer_part() const;
  /// True if each rank has only a part of the optimiser's state.
  bool has_parts() const;
  /// Sets the optimiser's state. `whole` returns a tensor of the whole state, given its name and
  /// number of elements.
  void set_optimizer_state(
      const std::function<torch::Tensor(const std::string& name, int64_t count)>& whole);
  TrainingState state;

 private:
  struct Loss {
    torch::Tensor value;  // its part of the update's loss, with the penalty; backward() starts here
    torch::Tensor count;  // labels that counted
  };
  struct Pending;
  struct Share;
  Loss loss_of(const Share& share);
  std::vector<double> traced_row_shares(const Share& share, size_t layers) const;
  void warm_up_lambda(int64_t step);
  torch::Tensor accumulate_gradients(BatchSource& source, StepReport& report);
  Batch own_tokens(const Batch& batch);
  std::vector<Share> next_shares(BatchSource& source, StepReport& report);
  void weigh(std::vector<Share>& shares);

  RunConfig config_;
  torch::Device device_;
  std::shared_ptr<TaskModel> model_;
  std::shared_ptr<parallel::Collective> world_;
  std::unique_ptr<DataParallel> parallel_;    // null in one process
  std::unique_ptr<ContextParallel> context_;  // null: this process has all tokens of its rows
  std::unique_ptr<WorkingCopy> working_;      // null: products cast the parameters
  AdamW optimizer_;
  std::unique_ptr<const Schedule> schedule_;
  std::unique_ptr<const FlopCounter> flops_;
  double peak_flops_;
  std::list<Pending> pending_;
  std::chrono::steady_clock::time_point last_finish_;
};

}  // namespace diffattn::train
