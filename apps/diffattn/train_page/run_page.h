// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/diffattn/train_page/samples.h"
#include "diffattn/train/run.h"
#include "diffattn/train/task_data.h"

namespace diffattn::app {

/// Writes report.html of a run folder from its metrics.jsonl: losses, learning rate, gradient norm,
/// lambda per layer and samples.
void write_run_page(const std::string& folder, const train::RunConfig& config, int64_t step,
                    const std::vector<Sample>& samples);

/// Keeps the page and the samples of a run up to date.
class RunPage {
 public:
  /// `run` must be resumed already, if it is to be.
  RunPage(const std::string& folder, const train::RunConfig& config, const train::TaskData& data,
          train::Run& run);

  /// Writes the samples of this step, prints them and writes the page. Call it after each
  /// evaluation.
  void refresh(int64_t step);
  /// Writes the page, with samples if the last step has none yet. Call it at the end.
  void finish();

 private:
  std::string folder_;
  const train::RunConfig& config_;
  const train::TaskData& data_;
  train::Run& run_;
  std::vector<std::string> prompts_;
  SampleLog samples_;
  int64_t refreshed_ = -1;  // the step of the last refresh()
};

}  // namespace diffattn::app
