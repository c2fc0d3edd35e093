// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/diffattn/terminal/json_text.h"
#include "diffattn/train/run_config.h"

namespace diffattn::app {

/// A language model for the benchmarks of whole models: one with random weights, by default of 20
/// million parameters, or that of a folder.
struct BenchModel {
  std::string folder;  // empty: random weights
  std::vector<std::string> attention{"diffllama", "transformer"};
  int64_t hidden = 384, intermediate = 1024, layers = 8, heads = 6, kv_heads = 0, vocab = 8192;
  int threads = 1;
  std::string dtype = "float32", device = "cpu";

  bool on_gpu() const { return device != "cpu"; }
  /// Takes the sizes of the folder, if there is one. Throws io::Error or train::ConfigError.
  void take_folder();
  /// Returns the resolved config of a model with one of the attentions.
  train::RunConfig run_config(const std::string& attention, int64_t batch, int64_t seq) const;
  /// Returns sizes, type, device and threads for a report.
  Json description() const;
};

void add_bench_model(CLI::App& verb, BenchModel& model);

}  // namespace diffattn::app
