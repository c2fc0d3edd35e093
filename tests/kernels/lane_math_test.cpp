// SPDX-License-Identifier: Apache-2.0
//
// The functions of 16 lanes against double, as each instruction set compiles them.

#include "kernels/cpu/host/lane_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace diffattn::testing::lane_math_test {
namespace {

using cpu::kLanes;

enum class Function { kPower, kFallingPower, kSoftplus, kSigmoid };

[[gnu::always_inline]] inline void apply(Function function, const float* from, float* to) {
  const cpu::Vector x = cpu::lanes_of(from, kLanes);
  switch (function) {
    case Function::kPower: return cpu::store_lanes(cpu::power_of_two<false>(x), kLanes, to);
    case Function::kFallingPower: return cpu::store_lanes(cpu::power_of_two<true>(x), kLanes, to);
    case Function::kSoftplus: return cpu::store_lanes(cpu::softplus(x), kLanes, to);
    case Function::kSigmoid: return cpu::store_lanes(cpu::sigmoid(x), kLanes, to);
  }
}

using Apply = void (*)(Function, const float*, float*);

[[gnu::target("arch=x86-64-v4")]] void apply_512(Function function, const float* x, float* y) {
  apply(function, x, y);
}
[[gnu::target("arch=x86-64-v3")]] void apply_256(Function function, const float* x, float* y) {
  apply(function, x, y);
}
void apply_128(Function function, const float* x, float* y) { apply(function, x, y); }

/// The copies that this machine can run.
std::vector<std::pair<std::string, Apply>> copies() {
  std::vector<std::pair<std::string, Apply>> all{{"default", apply_128}};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    all.emplace_back("x86-64-v3", apply_256);
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) {
    all.emplace_back("x86-64-v4", apply_512);
  }
  return all;
}

float value_of(Apply copy, Function function, float x) {
  std::vector<float> from(kLanes, x), to(kLanes);
  copy(function, from.data(), to.data());
  for (const float y : to) {
    EXPECT_TRUE(y == to[0] || std::isnan(y));
  }
  return to[0];
}

TEST(LaneMath, PowersOfTwoAreExactToTwoUnits) {
  for (const auto& [name, copy] : copies()) {
    for (float x = -126.0f; x <= 127.0f; x += 0.0173f) {
      const double expected = std::exp2(static_cast<double>(x));
      const float power = value_of(copy, Function::kPower, x);
      ASSERT_NEAR(power / expected, 1.0, 2e-7) << name << ", " << x;
      if (x > 0.0f) continue;
      ASSERT_EQ(power, value_of(copy, Function::kFallingPower, x)) << name << ", " << x;
    }
    for (const Function function : {Function::kPower, Function::kFallingPower}) {
      EXPECT_EQ(value_of(copy, function, 0.0f), 1.0f);
      EXPECT_EQ(value_of(copy, function, -0.0f), 1.0f);
    }
  }
}

TEST(LaneMath, PowersOutsideTheRangeEndAtItsEnds) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const auto& [name, copy] : copies()) {
    for (const float x : {-126.1f, -150.0f, -4.2e6f, -1e7f, -1e30f, -kInfinity}) {
      EXPECT_EQ(value_of(copy, Function::kPower, x), 0x1p-126f) << name << ", " << x;
      EXPECT_EQ(value_of(copy, Function::kFallingPower, x), 0x1p-126f) << name << ", " << x;
    }
    for (const float x : {127.1f, 200.0f, 4.2e6f, 1e7f, 1e30f, kInfinity}) {
      EXPECT_EQ(value_of(copy, Function::kPower, x), 0x1p127f) << name << ", " << x;
    }
    EXPECT_TRUE(std::isnan(value_of(copy, Function::kPower, std::nanf("")))) << name;
  }
}

TEST(LaneMath, SoftplusAndSigmoidOfAnyNumber) {
  std::vector<float> all{0.0f, -0.0f, 1e-30f, -1e-30f, 700.0f, -700.0f, 1e8f, -1e8f, 3e38f, -3e38f};
  for (float x = -100.0f; x <= 100.0f; x += 0.0371f) all.push_back(x);
  for (const auto& [name, copy] : copies()) {
    for (const float x : all) {
      const double wide = x, positive = std::max(wide, 0.0) + std::log1p(std::exp(-std::abs(wide)));
      constexpr double kTiny = 1e-37;                     // numbers below it may be flushed
      const double share = 4e-7 + 1e-7 * std::abs(wide);  // x log2(e) is rounded
      ASSERT_NEAR(value_of(copy, Function::kSoftplus, x), positive, share * positive + kTiny)
          << name << ", " << x;
      const double sigmoid = 1.0 / (1.0 + std::exp(-wide));
      ASSERT_NEAR(value_of(copy, Function::kSigmoid, x), sigmoid, share * sigmoid + kTiny)
          << name << ", " << x;
    }
  }
}

}  // namespace
}  // namespace diffattn::testing::lane_math_test
