// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/bench/measure.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

namespace diffattn::app {
namespace {

using Clock = std::chrono::steady_clock;

// Independent chains hide the latency of a multiply-add (4 cycles on two ports needs 8; more for
// machines with longer pipes), each of one vector register.
constexpr int kChains = 14;
constexpr int64_t kSteps = 200000;

/// Written with vector types rather than intrinsics; the compiler fuses the multiply and the add.
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

/// A field of /proc/self/status in bytes, -1 when absent.
int64_t status_bytes(const std::string& field) {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word) {
    int64_t kib = 0;
    if (word == field + ":" && file >> kib) return kib * 1024;
  }
  return -1;
}

c10::DeviceIndex current_gpu() {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index();
}

/// What torch has allocated on the current GPU.
c10::CachingAllocator::Stat gpu_bytes() {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(c10::kCUDA)->getDeviceStats(current_gpu()).allocated_bytes[kAll];
}

}  // namespace

Timing summarise(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const double median = (seconds[(seconds.size() - 1) / 2] + seconds[seconds.size() / 2]) / 2;
  return {median, seconds.front(), seconds.back()};
}

double measure_fma_peak(int threads) {
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

PeakMemory::PeakMemory(bool on_gpu) : on_gpu_(on_gpu) {
  if (on_gpu) {
    c10::getDeviceAllocator(c10::kCUDA)->resetPeakStats(current_gpu());
    start_ = gpu_bytes().current;
    return;
  }
  std::ofstream("/proc/self/clear_refs") << "5";  // sets the high-water mark to what is resident
  start_ = status_bytes("VmRSS");
}

int64_t PeakMemory::bytes() const {
  const int64_t peak = on_gpu_ ? gpu_bytes().peak : status_bytes("VmHWM");
  return start_ < 0 || peak < 0 ? -1 : std::max<int64_t>(0, peak - start_);
}

}  // namespace diffattn::app
