// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "apps/diffattn/bench/measure/timing.h"
#include "apps/diffattn/terminal/json_text.h"

// The frame of all benchmarks: they measure every point of a sweep and print a table after each
// point, or JSON or CSV at the end.

namespace diffattn::app {

struct BenchOutput {
  int repeat = 5;
  bool json = false, csv = false;
};

/// Adds --repeat, --json and --csv.
void add_bench_output(CLI::App& verb, BenchOutput& output);

struct BenchSweep {
  std::string device;  // becomes the current device during the sweep
  size_t points = 0;
  Json head = Json::object();  // entries of the report beside the machine
  std::function<std::string(size_t)> label;
  std::function<Json(size_t)> measure;
  std::function<void(const Json& point)> print;
  std::function<void(const Json& points)> print_csv;
};

/// Measures and prints all points. Returns the exit code.
int run_sweep(const BenchOutput& output, const BenchSweep& sweep);

/// Returns a row of a point's "routes": route, ms, ms_fastest, ms_slowest, peak_memory_mib.
Json bench_row(const std::string& route, const BenchSamples& samples);

/// A column of numbers in a printed table.
struct BenchColumn {
  std::string heading;
  std::function<std::string(const Json& row)> cell;
};

/// Prints the rows of a point below each other: the route, then the columns.
void print_routes(const Json& point, const std::string& heading,
                  const std::vector<BenchColumn>& columns);

/// Returns the column of "ms" and that of the spread: "12.345", "12.3-14.5".
std::vector<BenchColumn> time_columns();

/// Returns a column with the number `key`, with `digits` decimals.
BenchColumn number_column(const std::string& heading, const std::string& key, int digits);

/// Returns the type named "float32", "bfloat16", "float16" or "float64".
torch::ScalarType bench_dtype(const std::string& name);
const std::vector<std::string>& bench_dtypes();

}  // namespace diffattn::app
