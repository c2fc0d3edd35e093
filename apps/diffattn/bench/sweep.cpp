// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/bench/sweep.h"

#include <c10/core/DeviceGuard.h>
#include <fmt/core.h>

#include <optional>

#include "apps/diffattn/machine/machine.h"
#include "apps/diffattn/options/option_checks.h"
#include "apps/diffattn/terminal/json_output.h"
#include "apps/diffattn/terminal/print.h"
#include "apps/diffattn/terminal/progress_bar.h"
#include "apps/diffattn/terminal/text_table.h"
#include "diffattn/parallel/collective.h"

namespace diffattn::app {

void add_bench_output(CLI::App& verb, BenchOutput& output) {
  verb.add_option("--repeat", output.repeat, "repetitions after a warm-up (default 5)")
      ->check(integer_in(1, 10000));
  CLI::Option* json = verb.add_flag("--json", output.json, "print one JSON object");
  verb.add_flag("--csv", output.csv, "print comma-separated values")->excludes(json);
}

int run_sweep(const BenchOutput& output, const BenchSweep& sweep) {
  const c10::DeviceGuard current{torch::Device(sweep.device)};
  const Machine machine = this_machine();
  Json report{{"cpu", machine.cpu}, {"gpus", machine.gpus}, {"torch", DIFFATTN_TORCH_VERSION}};
  report.update(sweep.head);
  report["points"] = Json::array();
  const bool speaks = parallel::world()->rank() == 0;
  const bool quiet = output.json || output.csv || !speaks;
  if (!quiet) {
    print_out("{}, torch {}; {}\n", machine.cpu, DIFFATTN_TORCH_VERSION,
              output.repeat == 1
                  ? "one repetition"
                  : fmt::format("medians of {} interleaved repetitions", output.repeat));
  }
  std::optional<ProgressBar> bar;
  if (speaks) bar.emplace("bench", static_cast<int64_t>(sweep.points));
  for (size_t i = 0; i < sweep.points; ++i) {
    report["points"].push_back(sweep.measure(i));
    if (bar) bar->clear();
    if (!quiet) {
      sweep.print(report["points"].back());
      std::fflush(stdout);
    }
    if (bar) bar->step(sweep.label(i));
  }
  if (bar) bar->clear();
  if (output.json) print_json(report);
  if (output.csv && speaks) sweep.print_csv(report["points"]);
  return 0;
}

Json bench_row(const std::string& route, const BenchSamples& samples) {
  return {{"route", route},
          {"ms", samples.timing.median * 1e3},
          {"ms_fastest", samples.timing.fastest * 1e3},
          {"ms_slowest", samples.timing.slowest * 1e3},
          {"peak_memory_mib", static_cast<double>(samples.memory) / (1 << 20)}};
}

void print_routes(const Json& point, const std::string& heading,
                  const std::vector<BenchColumn>& columns) {
  TextTable table{.lines = {"  " + heading}, .marks = {""}, .columns = {}};
  for (const Json& row : point["routes"]) {
    table.lines.push_back("  " + row["route"].get<std::string>());
    table.marks.emplace_back();
  }
  for (const BenchColumn& column : columns) {
    table.columns.push_back({{column.heading}, {}});
    for (const Json& row : point["routes"]) table.columns.back().cells.push_back(column.cell(row));
  }
  print_table(table, 4, 2);
}

std::vector<BenchColumn> time_columns() {
  const auto spread = [](const Json& row) {
    return fmt::format("{:.3f}-{:.3f}", row["ms_fastest"].get<double>(),
                       row["ms_slowest"].get<double>());
  };
  return {number_column("ms", "ms", 3), {"spread", spread}};
}

BenchColumn number_column(const std::string& heading, const std::string& key, int digits) {
  return {heading, [key, digits](const Json& row) {
            return row[key].is_null() ? "-"
                                      : fmt::format("{:.{}f}", row[key].get<double>(), digits);
          }};
}

torch::ScalarType bench_dtype(const std::string& name) {
  if (name == "bfloat16") return torch::kBFloat16;
  if (name == "float16") return torch::kFloat16;
  return name == "float64" ? torch::kFloat64 : torch::kFloat32;
}

const std::vector<std::string>& bench_dtypes() {
  static const std::vector<std::string> names{"float32", "bfloat16", "float16", "float64"};
  return names;
}

}  // namespace diffattn::app
