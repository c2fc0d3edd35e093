// SPDX-License-Identifier: Apache-2.0
//
// The building blocks of each instruction set this machine has, alone and in L1: the product of one
// tile, exponentials, the packing of one panel.
//
//   tile_bench [--benchmark_filter=avx512/product]

#include <benchmark/benchmark.h>

#include <string>

#include "diffattn/kernels/backend.h"
#include "benchmarks/cpu/peak.h"
#include "benchmarks/cpu/tile_loops.h"

namespace diffattn::bench {
namespace {

using benchmark::Counter;
constexpr int64_t kLoops = 100;  // of one timed call

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
