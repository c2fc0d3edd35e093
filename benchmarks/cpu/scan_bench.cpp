// SPDX-License-Identifier: Apache-2.0
//
// Times the selective scan beside the exponentials that it needs: one per channel, state and token,
// with the scan's own vector code. Both take turns on one thread. Times are processor time, so that
// other programs disturb both alike.
//
//   scan_bench [tokens] [channels]

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "diffattn/kernels/cpu.h"
#include "kernels/cpu/host/each_isa.h"
#include "kernels/cpu/host/lane_math.h"
#include "kernels/selective_scan.h"

namespace diffattn::bench {
namespace {

constexpr int64_t kStates = 16;  // of published models
constexpr int kRounds = 25;

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Scan {
  Scan(int64_t tokens, int64_t channels)
      : u(random(tokens * channels, 1.0f, 0.0f)),
        delta(random(tokens * channels, 1.0f, -2.0f)),
        b(random(tokens * kStates, 1.0f, 0.0f)),
        c(random(tokens * kStates, 1.0f, 0.0f)),
        a(random(channels * kStates, 0.1f, -4.0f)),
        d(random(channels, 1.0f, 0.0f)),
        y(u.size()),
        last(a.size()),
        in{.u = u.data(),
           .delta = delta.data(),
           .b = b.data(),
           .c = c.data(),
           .a = a.data(),
           .d = d.data(),
           .batch = 1,
           .length = tokens,
           .channels = channels,
           .states = kStates,
           .u_stride = channels,
           .delta_stride = channels,
           .b_stride = kStates,
           .c_stride = kStates} {}

  void run() { cpu::selective_scan({in, y.data(), last.data()}); }

  std::vector<float> random(int64_t count, float spread, float mean) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = mean + spread * normal(bits);
    return values;
  }

  std::minstd_rand bits{1};
  std::normal_distribution<float> normal;
  std::vector<float> u, delta, b, c, a, d, y, last;
  ScanInputs<float> in;
};

/// Computes exp(delta A) of every channel, state and token, and drops it.
DIFFATTN_EACH_ISA void exponentials(const Scan& scan) {
  const ScanInputs<float>& in = scan.in;
  for (int64_t channel = 0; channel + cpu::kLanes <= in.channels; channel += cpu::kLanes) {
    cpu::Vector a[kStates];
    for (int64_t n = 0; n < kStates; ++n) {
      a[n] = cpu::lanes_of(in.a + channel * kStates + n * cpu::kLanes, cpu::kLanes);
    }
    for (int64_t t = 0; t < in.length; ++t) {
      const cpu::Vector step = cpu::lanes_of(in.delta + t * in.channels + channel, cpu::kLanes);
#pragma GCC unroll 16
      for (const cpu::Vector& rate : a) {
        const cpu::Vector power = cpu::power_of_two<true>(-step * rate);
        asm volatile("" ::"x"(power[0]));  // keeps the compiler from dropping it
      }
    }
  }
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + kRounds / 2);
  return values[kRounds / 2];
}

int run(int64_t tokens, int64_t channels) {
  cpu::set_thread_count(1);
  Scan scan(tokens, channels);
  std::vector<double> scans, powers, shares;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = processor_seconds();
    exponentials(scan);
    const double middle = processor_seconds();
    scan.run();
    const double end = processor_seconds();
    powers.push_back(middle - begin);
    scans.push_back(end - middle);
    shares.push_back((middle - begin) / (end - middle));
  }
  const double count = static_cast<double>(tokens * channels * kStates);
  std::printf(
      "%lld tokens, %lld channels, %lld states, one thread: %.3f ns per exponential alone, %.3f in "
      "the scan: %.0f %%\n",
      static_cast<long long>(tokens), static_cast<long long>(channels),
      static_cast<long long>(kStates), median(powers) / count * 1e9, median(scans) / count * 1e9,
      median(shares) * 100.0);
  return 0;
}

}  // namespace
}  // namespace diffattn::bench

int main(int argc, char** argv) {
  const auto argument = [&](int index, int64_t usual) {
    return argc > index ? std::max<int64_t>(16, std::stoll(argv[index])) : usual;
  };
  return diffattn::bench::run(argument(1, 1024), argument(2, 5120));
}
