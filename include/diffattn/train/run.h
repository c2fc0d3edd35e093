// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "diffattn/train/evaluate.h"
#include "diffattn/train/run_config.h"
#include "diffattn/train/trainer.h"

namespace diffattn::io {
class JsonValue;
}

namespace diffattn::train {

class Checkpoints;
class MetricsLog;
class RunLock;

enum class Outcome {
  kDone,
  kStopped,    // RunEvents::stop returned true; a checkpoint is saved
  kNonFinite,  // too many non-finite updates in a row
};

/// Callbacks of a run. Any may be empty.
struct RunEvents {
  std::function<void(const StepReport&, const TrainingState&)> on_step;
  std::function<void(int64_t step, const Evaluation&, bool best)> on_evaluation;
  std::function<void(const std::string& folder)> on_checkpoint;
  std::function<bool()> stop;  // called after every update
};

/// How Run::resume() continues a run.
struct ResumeOptions {
  std::optional<int64_t> from = {};  // the step of a checkpoint; none: the newest complete one
  bool change_batch_size = false;    // allow another number of rows per update
};

/// A run folder in use: config.toml, metrics.jsonl, TensorBoard events, checkpoints/, model/.
///
/// The same config gives the same bits, whether or not the run was stopped and resumed, on the CPU
/// and, with torch's deterministic mode, on a GPU.
class Run {
 public:
  /// Opens or creates the folder and locks it. Throws io::Error if another process holds the lock.
  /// The config must be resolved, and the model must have its initial weights. `extra_files` (name,
  /// text), for example a tokenizer, go into the model folder and every checkpoint.
  ///
  /// Several processes of a job make one run together: each constructs it and makes the same calls,
  /// with batches of its part of the rows. Rank 0 alone locks the folder and writes to it.
  Run(const std::string& folder, const RunConfig& config, std::shared_ptr<TaskModel> model,
      std::vector<std::pair<std::string, std::string>> extra_files = {},
      std::shared_ptr<parallel::Collective> world = parallel::one_process());
  Run(const std::string& folder, const RunConfig& config, nn::CausalLM model,
      std::vector<std::pair<std::string, std::string>> extra_files = {});

  ~Run();

  /// Checks the checksums of a checkpoint and restores it, including the position of `train`. Warns
  /// about newer folders that never became complete. Returns false if there is no checkpoint.
  /// Throws io::Error if the checkpoint is damaged; the message names the file and the newest
  /// earlier checkpoint that is intact. Throws ConfigError if the rows per update have changed.
  bool resume(BatchSource& train, const ResumeOptions& options = {});

  /// True if the folder has a complete checkpoint.
  bool has_checkpoint() const;

  /// Returns the newest checkpoint whose checksums are right, or nothing. Reads all its files.
  std::optional<std::string> intact_checkpoint() const;

  /// Trains up to step config.train.steps. `valid` may be null.
  Outcome go(BatchSource& train, BatchSource* valid, const RunEvents& events = {});

  Trainer& trainer() { return trainer_; }
  std::string model_folder() const { return folder_ + "/model"; }

 private:
  void save(const BatchSource& train);
  void write_part(const std::string& checkpoint, const BatchSource& train);
  std::vector<std::string> write_parts(const std::string& checkpoint, const BatchSource& train);
  void together(const std::function<void()>& work);
  void check_checkpoint(int64_t step) const;
  void load(const std::string& checkpoint, BatchSource& train, const ResumeOptions& options);
  void load_optimizer(const std::string& checkpoint, const std::string& part,
                      const io::JsonValue& saved);
  void save_model();
  void evaluate(BatchSource& valid, const RunEvents& events);
  void log_statistics(BatchSource& source);
  void log(const StepReport& report);
  void check_lock() const;
  bool is_first() const { return world_->rank() == 0; }
  int64_t chosen_checkpoint(const ResumeOptions& options);

  std::shared_ptr<parallel::Collective> world_;
  std::string folder_;
  std::unique_ptr<RunLock> lock_;  // of rank 0, as checkpoints_ and metrics_
  RunConfig config_;
  std::unique_ptr<Checkpoints> checkpoints_;
  Trainer trainer_;
  std::vector<std::pair<std::string, std::string>> extra_files_;
  std::unique_ptr<MetricsLog> metrics_;
};

/// Returns the run file of the run in a folder, with all settings resolved. Throws io::Error if
/// there is none.
std::string read_run_file(const std::string& folder);

}  // namespace diffattn::train
