// SPDX-License-Identifier: Apache-2.0
#include "compare/environment.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace diffattn::compare {
namespace {

/// Returns the machines that trained, each once. Saved runs may come from others than this one.
std::vector<std::string> machines_of(const Comparison& comparison) {
  std::vector<std::string> machines;
  for (const ModelResult& model : comparison.models) {
    for (const RunResult& run : model.runs) {
      if (std::ranges::find(machines, run.machine) == machines.end()) {
        machines.push_back(run.machine);
      }
    }
  }
  return machines;
}

std::string duration_text(double seconds) {
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  return seconds < 7200 ? fmt::format("{:.1f} minutes", seconds / 60)
                        : fmt::format("{:.1f} hours", seconds / 3600);
}

}  // namespace

std::string machine_of(const Environment& environment) {
  return environment.gpu.empty() ? environment.cpu : environment.gpu;
}

std::string software_of(const Environment& environment) {
  if (environment.diffattn.empty()) return "";
  return fmt::format("diffattn {}, torch {}", environment.diffattn, environment.torch);
}

double train_seconds(const Comparison& comparison) {
  double seconds = 0;
  for (const ModelResult& model : comparison.models) {
    seconds += model.tried_seconds;
    for (const RunResult& run : model.runs) seconds += run.train_seconds;
  }
  return seconds;
}

std::string environment_line(const Comparison& comparison) {
  const Environment& environment = comparison.environment;
  if (environment.diffattn.empty()) return "";
  return fmt::format("Trained on {} with {} {}, {}. All runs together took {}.",
                     fmt::join(machines_of(comparison), " and "), environment.threads,
                     environment.threads == 1 ? "thread" : "threads", software_of(environment),
                     duration_text(train_seconds(comparison)));
}

}  // namespace diffattn::compare
