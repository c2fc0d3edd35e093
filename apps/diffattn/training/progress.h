// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <deque>
#include <string>

#include "apps/diffattn/terminal/progress_bar.h"
#include "diffattn/train/evaluate.h"
#include "diffattn/train/run_config.h"
#include "diffattn/train/trainer.h"

namespace diffattn::app {

/// Means over the last updates of a run. Single updates vary too much to be read.
class RecentUpdates {
 public:
  void add(const train::StepReport& report);
  /// Returns "loss 2.0931  1402 tok/s  lr 6.00e-04  |g| 1.29  MFU 41 %", the most useful field
  /// first. Learning rate and gradient norm are those of the last update.
  std::string line() const;

 private:
  static constexpr size_t kUpdates = 20;
  std::deque<train::StepReport> reports_;  // the last kUpdates, the newest at the end
};

/// Reports training as a bar on a terminal, and as lines every train.log_every steps elsewhere.
class TrainingProgress {
 public:
  TrainingProgress(const train::RunConfig& config, int64_t done)
      : config_(config), bar_("train", config.train.steps, done) {}

  void step(const train::StepReport& report);
  void evaluation(int64_t step, const train::Evaluation& result, bool best);
  /// Says that a signal ends the run after `step`.
  void stopping(int64_t step);

  double last_loss() const { return last_loss_; }
  double valid_loss() const { return valid_loss_; }
  double valid_accuracy() const { return valid_accuracy_; }

 private:
  const train::RunConfig& config_;
  ProgressBar bar_;
  RecentUpdates recent_;
  double last_loss_ = std::nan(""), valid_loss_ = std::nan(""), valid_accuracy_ = std::nan("");
};

}  // namespace diffattn::app
