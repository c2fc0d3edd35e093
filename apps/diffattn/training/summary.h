// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "diffattn/train/run_config.h"
#include "diffattn/train/task_data.h"
#include "train/memory_estimate.h"

namespace diffattn::app {

/// The sizes of a run and what it needs, known before it starts.
struct RunSummary {
  int64_t parameters = 0;
  int64_t tokens_per_step = 0;
  int threads = 0;  // of each process
  int64_t processes = 1;
  train::MemoryEstimate memory;  // of each process
  double step_flops = 0;         // floating-point operations of one update
  double speed = 0;              // FLOP/s of all processes: matrix products, or train.peak_tflops
  double seconds = 0;            // expected time for all steps
};

RunSummary summarize_run(const train::RunConfig& config, int64_t parameters);

/// Prints model, data, device, memory and expected time of the steps after `done` to standard
/// error, one line each.
void print_summary(const train::RunConfig& config, const train::TaskData& data,
                   const RunSummary& summary, int64_t done);

/// Returns "512 MiB" or "15.6 GiB".
std::string memory_text(int64_t bytes);

/// Returns a rough duration: "40 s", "3 min", "2.5 h" or "4 days".
std::string duration_text(double seconds);

}  // namespace diffattn::app
