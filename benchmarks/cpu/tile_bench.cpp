// SPDX-License-Identifier: Apache-2.0
//
// Times the building blocks of each instruction set that this machine has, on data in L1: the
// product of one tile, exponentials, and the packing of one panel.
//
//   tile_bench [--benchmark_filter=avx512/product]

#include <benchmark/benchmark.h>

#include <string>

#include "benchmarks/cpu/peak.h"
#include "benchmarks/cpu/tile_loops.h"
#include "diffattn/kernels/backend.h"

namespace diffattn::bench {
namespace {

using benchmark::Counter;
constexpr int64_t kLoops = 100;  // iterations per timed call

void register_loops(const TileLoops& loops) {
  const std::string name = loops.backend;
  const double peak = peak_flops(name);
  benchmark::RegisterBenchmark(
      (name + "/product").c_str(),
      [&loops, peak](benchmark::State& state) {
        double flop = 0.0;
        for (auto _ : state) {
          flop += static_cast<double>(loops.product(kLoops, state.range(0)));
        }
        state.counters["flops"] = Counter(flop, Counter::kIsRate);
        state.counters["peak_share"] = Counter(flop / peak, Counter::kIsRate);
      })
      ->ArgName("steps")
      ->Arg(32)
      ->Arg(64)
      ->Arg(96)
      ->Arg(192);
  benchmark::RegisterBenchmark((name + "/exponentials").c_str(), [&loops](benchmark::State& state) {
    double count = 0.0;
    for (auto _ : state) count += static_cast<double>(loops.exponentials(kLoops));
    state.counters["per_second"] = Counter(count, Counter::kIsRate);
  });
  benchmark::RegisterBenchmark((name + "/transpose").c_str(),
                               [&loops](benchmark::State& state) {
                                 double bytes = 0.0;
                                 for (auto _ : state) {
                                   bytes +=
                                       static_cast<double>(loops.transpose(kLoops, state.range(0)));
                                 }
                                 state.counters["bytes"] = Counter(bytes, Counter::kIsRate);
                               })
      ->ArgName("D")
      ->Arg(64)
      ->Arg(128);
}

}  // namespace
}  // namespace diffattn::bench

int main(int argc, char** argv) {
  for (const diffattn::Backend& backend : diffattn::cpu_backends()) {
    if (!backend.available()) continue;
    for (const diffattn::bench::TileLoops* loops :
         {&diffattn::cpu::amx::tile_loops(), &diffattn::cpu::avx512_bf16::tile_loops(),
          &diffattn::cpu::avx512::tile_loops(), &diffattn::cpu::avx2::tile_loops()}) {
      if (std::string(loops->backend) == backend.name) diffattn::bench::register_loops(*loops);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
