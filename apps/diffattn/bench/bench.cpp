// SPDX-License-Identifier: Apache-2.0
//
// diffattn bench: picks one of the benchmarks.

#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "apps/diffattn/options/nearest.h"
#include "apps/diffattn/verbs.h"

namespace diffattn::app {
namespace {

/// Makes CLI11 require a benchmark. CLI11's own message, "A subcommand is required", names neither
/// the argument nor the benchmarks.
void require_benchmark(CLI::App& bench) {
  bench.require_subcommand(0, 1);
  bench.parse_complete_callback([&bench] {
    if (!bench.get_subcommands().empty()) return;
    std::vector<std::string> names;
    for (const CLI::App* benchmark : bench.get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(benchmark->get_name());
    }
    const auto rest = bench.remaining();
    const std::string got =
        rest.empty() ? "" : ", got '" + rest.front() + "'" + nearest_hint(rest.front(), names);
    throw CLI::RequiredError(
        fmt::format("bench: expected one of {}{}", fmt::join(names, ", "), got),
        CLI::ExitCodes::RequiredError);
  });
}

}  // namespace

VerbAction add_bench(CLI::App& app) {
  auto* bench = app.add_subcommand(
      "bench", "Time the operator, a layer, training steps, generation or a server");
  bench->footer("Example:\n  diffattn bench attention --seq 2048 --mask causal --dtype float32");
  require_benchmark(*bench);
  const std::vector<std::pair<std::string, VerbAction>> benchmarks{
      {"attention", add_bench_attention(*bench)},
      {"module", add_bench_module(*bench)},
      {"step", add_bench_step(*bench)},
      {"generate", add_bench_generate(*bench)},
      {"serve", add_bench_serve(*bench)}};
  for (const auto& [name, action] : benchmarks) bench->get_subcommand(name)->group("Benchmarks");
  return [bench, benchmarks] {
    for (const auto& [name, action] : benchmarks) {
      if (bench->get_subcommand(name)->parsed()) return action();
    }
    return 1;  // not reached: parsing requires a benchmark
  };
}

}  // namespace diffattn::app
