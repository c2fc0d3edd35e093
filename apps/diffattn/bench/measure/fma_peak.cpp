// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/bench/measure/fma_peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace diffattn::app {
namespace {

// Independent chains hide the latency of a multiply-add: 4 cycles on two ports need 8 chains, CPUs
// with a longer latency need more. Each chain takes one vector register.
constexpr int kChains = 14;
constexpr int64_t kSteps = 200000;

/// Computes `kSteps` multiply-adds on every chain. The compiler turns `x * factor + term` on vector
/// types into fused instructions, so no intrinsics are needed.
template <class Vector>
[[gnu::always_inline]] inline float multiply_add_chains(float seed) {
  Vector chain[kChains];
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) chain[i] = Vector{} + (seed + static_cast<float>(i));
  const Vector factor = Vector{} + 0.999f, term = Vector{} + seed;
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) chain[i] = chain[i] * factor + term;
  }
  Vector sum{};
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) sum += chain[i];
  return sum[0];
}

using Floats8 [[gnu::vector_size(32)]] = float;
using Floats16 [[gnu::vector_size(64)]] = float;

[[gnu::target("avx512f,fma")]] float chains_512(float seed) {
  return multiply_add_chains<Floats16>(seed);
}
[[gnu::target("avx2,fma")]] float chains_256(float seed) {
  return multiply_add_chains<Floats8>(seed);
}

}  // namespace

double measure_fma_peak(int threads) {
  using Clock = std::chrono::steady_clock;
  const bool wide = __builtin_cpu_supports("avx512f");
  const int width = wide ? 16 : 8;
  if (!wide && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) return 0.0;
  volatile float sink = 0.5f;
  double best = 1e30;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto start = Clock::now();
    sink = wide ? chains_512(sink) : chains_256(sink);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return 2.0 * width * kChains * static_cast<double>(kSteps) / best * threads;
}

}  // namespace diffattn::app
