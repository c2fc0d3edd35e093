// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "diffattn/train/run_config.h"

namespace diffattn::app {

/// A language model with random weights, as the benchmarks of whole models make it. The default has
/// 20 million parameters.
struct BenchModel {
  std::vector<std::string> attention{"diffllama", "transformer"};
  int64_t hidden = 384, intermediate = 1024, layers = 8, heads = 6, kv_heads = 0, vocab = 8192;
  int threads = 1;
  std::string dtype = "float32", device = "cpu";

  bool on_gpu() const { return device != "cpu"; }
  /// Resolved; steps, batch_size and seq_len are the caller's.
  train::RunConfig run_config(const std::string& attention, int64_t batch, int64_t seq) const;
  /// What a report says of it.
  nlohmann::ordered_json description() const;
};

void add_bench_model(CLI::App& verb, BenchModel& model);

}  // namespace diffattn::app
