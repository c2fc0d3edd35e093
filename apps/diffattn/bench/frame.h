// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/diffattn/bench/measure.h"

/// What all benchmarks share: the machine's line, a bar, a table after each point of the sweep or
/// one object at the end; routes that take turns within each repetition, so that a noisy neighbour
/// hits all of them.
namespace diffattn::app {

using Json = nlohmann::ordered_json;

struct BenchOutput {
  int repeat = 5;
  bool json = false, csv = false;
};

/// --repeat, --json and --csv.
void add_bench_output(CLI::App& verb, BenchOutput& output);

struct BenchSweep {
  std::string device;  // where it is measured; the current one meanwhile
  size_t points = 0;
  Json head = Json::object();  // goes into the report beside the machine
  std::function<std::string(size_t)> label;
  std::function<Json(size_t)> measure;
  std::function<void(const Json& point)> print;
  std::function<void(const Json& points)> print_csv;
};

int run_sweep(const BenchOutput& output, const BenchSweep& sweep);

/// What one run gave.
struct BenchSample {
  double seconds = 0.0;
  int64_t memory = 0;  // bytes, at the peak
  torch::Tensor result;
};

/// The same from all runs of one route.
struct BenchSamples {
  Timing timing;
  int64_t memory = 0;
  torch::Tensor result;  // of the run that warmed up
};

/// Runs routes 0 ... count - 1 in turn, `repeat` times after a warm-up.
std::vector<BenchSamples> take_turns(size_t count, int repeat,
                                     const std::function<BenchSample(size_t route)>& run);

/// route, ms, ms_fastest, ms_slowest, peak_memory_mib.
Json bench_row(const std::string& route, const BenchSamples& samples);

/// Seconds of `work`, on a GPU until it is done.
double bench_seconds(bool on_gpu, const std::function<void()>& work);

/// Seconds that a GPU takes for `work`, between events on its stream, with nothing of the tensors
/// left in its caches. The host's share does not count unless it is the slower one.
double bench_device_seconds(const std::function<void()>& work);

/// "float32", "bfloat16", "float16" or "float64".
torch::ScalarType bench_dtype(const std::string& name);
const std::vector<std::string>& bench_dtypes();

/// "12.3-14.5"
std::string spread_text(const Json& row);

}  // namespace diffattn::app
