// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/training/summary.h"

#include <ATen/Parallel.h>
#include <fmt/core.h>

#include <algorithm>

#include "apps/diffattn/machine/machine.h"
#include "apps/diffattn/terminal/print.h"
#include "train/flops.h"

namespace diffattn::app {
namespace {

/// Share of the speed of large matrix products that training usually reaches. Examples of this
/// repository reach 0.28 (width 64) and 0.55 (width 128) on a CPU.
constexpr double kTypicalShare = 0.4;

}  // namespace

RunSummary summarize_run(const train::RunConfig& config, int64_t parameters) {
  const train::RunConfig::Train& t = config.train;
  RunSummary summary;
  summary.parameters = parameters;
  summary.tokens_per_step = t.batch_size * t.accumulate * t.seq_len;
  summary.threads = at::get_num_threads();
  summary.processes = config.job.processes * t.context_parallel;
  summary.memory = train::estimate_memory(config, parameters);
  summary.step_flops = train::estimate_update_flops(config, parameters);
  summary.speed = t.peak_tflops > 0.0 ? t.peak_tflops * 1e12
                                      : train::product_speed(torch::Device(t.device), t.dtype);
  summary.speed *= static_cast<double>(summary.processes);
  summary.seconds =
      static_cast<double>(t.steps) * summary.step_flops / (kTypicalShare * summary.speed);
  return summary;
}

void print_summary(const train::RunConfig& config, const train::TaskData& data,
                   const RunSummary& summary, int64_t done) {
  const train::RunConfig::Model& m = config.model;
  const train::RunConfig::Train& t = config.train;
  print_note("model   {}, {} layers of width {}, {:.2f} M parameters\n", m.attention,
             m.num_hidden_layers, m.hidden_size, static_cast<double>(summary.parameters) / 1e6);
  if (data.train_tokens) {
    const auto read = static_cast<double>(summary.tokens_per_step * t.steps);
    print_note("data    {} tokens, read {:.2f} times in {} steps of {}\n", *data.train_tokens,
               read / static_cast<double>(std::max<int64_t>(1, *data.train_tokens)), t.steps,
               summary.tokens_per_step);
  } else {
    print_note("data    generated, {} steps of {} tokens\n", t.steps, summary.tokens_per_step);
  }
  const std::string each =
      summary.processes == 1 ? "" : fmt::format(" in each of {} processes", summary.processes);
  print_note("device  {}, {}, {}{}\n", t.device, thread_text(summary.threads), t.dtype, each);
  print_note("memory  about {}{}\n", memory_text(summary.memory.total()), each);
  const double left = static_cast<double>(t.steps - std::min(done, t.steps)) /
                      static_cast<double>(std::max<int64_t>(1, t.steps));
  print_note("time    about {} at {:.0f} % of {:.0f} GFLOP/s\n",
             duration_text(summary.seconds * left), 100.0 * kTypicalShare, summary.speed / 1e9);
}

std::string memory_text(int64_t bytes) {
  const double mebibytes = static_cast<double>(bytes) / (1 << 20);
  return mebibytes < 10240.0 ? fmt::format("{:.0f} MiB", mebibytes)
                             : fmt::format("{:.1f} GiB", mebibytes / 1024.0);
}

std::string duration_text(double seconds) {
  if (seconds < 100.0) return fmt::format("{:.0f} s", std::max(1.0, seconds));
  if (seconds < 100.0 * 60.0) return fmt::format("{:.0f} min", seconds / 60.0);
  if (seconds < 48.0 * 3600.0) return fmt::format("{:.1f} h", seconds / 3600.0);
  return fmt::format("{:.0f} days", seconds / 86400.0);
}

}  // namespace diffattn::app
