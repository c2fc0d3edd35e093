// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "diffattn/train/evaluate.h"
#include "diffattn/train/run_config.h"
#include "diffattn/train/trainer.h"

namespace diffattn::train {

class Checkpoints;
class MetricsLog;
class RunLock;

enum class Outcome {
  kDone,
  kStopped,    // a signal came: everything is saved
  kNonFinite,  // too many updates in a row were not finite; the last checkpoint is intact
};

/// What a run tells while it goes. Any may be empty.
struct RunEvents {
  std::function<void(const StepReport&, const Progress&)> on_step;
  std::function<void(int64_t step, const Evaluation&, bool best)> on_evaluation;
  std::function<void(const std::string& folder)> on_checkpoint;
  std::function<bool()> stop;  // asked after every update
};

/// A run folder in use: config.toml, metrics.jsonl, TensorBoard events, checkpoints/, model/.
///
/// The same config gives the same bits, whether the run went through or was stopped and resumed at
/// any moment (on the CPU, and on a GPU with torch's deterministic mode).
class Run {
 public:
  /// Starts in a new folder, or one without a run in it. `seed` has been set and the model drawn
  /// from it by the caller. `extra_files` (name, text) go into every model folder
  /// and checkpoint, a tokenizer say.
  Run(const std::string& folder, const RunConfig& config, std::shared_ptr<TaskModel> model,
      std::vector<std::pair<std::string, std::string>> extra_files = {});
  Run(const std::string& folder, const RunConfig& config, nn::CausalLM model,
      std::vector<std::pair<std::string, std::string>> extra_files = {});

  ~Run();

  /// Goes to the newest checkpoint; false when there is none. Moves `train` there too.
  bool resume(BatchSource& train);

  /// Trains until config.train.steps. `valid` may be null.
  Outcome go(BatchSource& train, BatchSource* valid, const RunEvents& events = {});

  Trainer& trainer() { return trainer_; }
  std::string model_folder() const { return folder_ + "/model"; }

 private:
  void save(const BatchSource& train);
  void save_model();
  void evaluate(BatchSource& valid, const RunEvents& events);
  void log_statistics(BatchSource& source);
  void log(const StepReport& report);

  std::string folder_;
  std::unique_ptr<RunLock> lock_;
  RunConfig config_;
  std::unique_ptr<Checkpoints> checkpoints_;
  Trainer trainer_;
  std::vector<std::pair<std::string, std::string>> extra_files_;
  std::unique_ptr<MetricsLog> metrics_;
};

/// The resolved config of the run in a folder, as text of a run file; throws io::Error when there
/// is none.
std::string read_run_file(const std::string& folder);

}  // namespace diffattn::train
