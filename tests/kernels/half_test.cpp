// SPDX-License-Identifier: Apache-2.0
//
// bf16 and fp16 of half.h: widening is exact; narrowing rounds to nearest, ties to even.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "diffattn/kernels/half.h"
#include "tests/support/rng.h"

namespace diffattn::testing {
namespace {

/// Returns the value of a bit pattern by the definition of the format.
double decode(uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

template <class T>
struct Format;
template <>
struct Format<BFloat16> {
  static constexpr int kExponentBits = 8;
};
template <>
struct Format<Float16> {
  static constexpr int kExponentBits = 5;
};

/// Rounds to nearest by a binary search for the two neighbours of |value|. The pattern of infinity
/// stands for the number that would follow the largest finite one.
template <class T>
uint16_t slow_narrow(float value) {
  constexpr int kExponentBits = Format<T>::kExponentBits;
  const double magnitude = std::abs(static_cast<double>(value));
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const uint16_t infinity =
      static_cast<uint16_t>(((1 << kExponentBits) - 1) << (15 - kExponentBits));
  const double beyond = std::ldexp(1.0, 1 << (kExponentBits - 1));
  const auto value_of = [&](uint16_t bits) {
    return bits == infinity ? beyond : decode(bits, kExponentBits);
  };
  if (magnitude >= beyond) return sign | infinity;
  uint16_t low = 0, high = infinity;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (value_of(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value_of(low), above = value_of(high) - magnitude;
  const bool up = above < below || (above == below && (high & 1) == 0);
  return sign | (up ? high : low);
}

template <class T>
class Half : public ::testing::Test {};
using HalfTypes = ::testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(Half, HalfTypes);

TYPED_TEST(Half, EveryPatternWidensExactlyAndComesBack) {
  for (int pattern = 0; pattern < 65536; ++pattern) {
    TypeParam x;
    x.bits = static_cast<uint16_t>(pattern);
    const float wide = static_cast<float>(x);
    const double want = decode(x.bits, Format<TypeParam>::kExponentBits);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(wide)) << pattern;
      ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(wide)))) << pattern;
      continue;
    }
    ASSERT_EQ(wide, want) << pattern;
    ASSERT_EQ(std::signbit(wide), std::signbit(want)) << pattern;
    ASSERT_EQ(TypeParam(wide).bits, x.bits) << pattern;
  }
}

TYPED_TEST(Half, NarrowingAroundEveryNumberAndEveryMiddle) {
  for (int pattern = 0; pattern < 65536; ++pattern) {
    TypeParam x, next;
    x.bits = static_cast<uint16_t>(pattern);
    next.bits = static_cast<uint16_t>(pattern + 1);
    const float here = static_cast<float>(x), there = static_cast<float>(next);
    if (!std::isfinite(here)) continue;
    const float far =
        std::isfinite(there) && std::signbit(here) == std::signbit(there) ? there : here;
    const auto middle = static_cast<float>((static_cast<double>(here) + far) / 2);
    for (const float centre : {here, middle}) {
      for (const float y :
           {std::nextafter(centre, -INFINITY), centre, std::nextafter(centre, INFINITY)}) {
        ASSERT_EQ(TypeParam(y).bits, slow_narrow<TypeParam>(y)) << std::hexfloat << y;
      }
    }
  }
}

TYPED_TEST(Half, NarrowingOfRandomFloats) {
  Rng rng(7);
  for (int i = 0; i < 1000000; ++i) {
    const auto word = static_cast<uint32_t>(rng.next());
    float value;
    std::memcpy(&value, &word, sizeof value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(value)))) << word;
    } else {
      ASSERT_EQ(TypeParam(value).bits, slow_narrow<TypeParam>(value)) << std::hexfloat << value;
    }
  }
}

TYPED_TEST(Half, Ends) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(static_cast<float>(TypeParam(kInfinity)), kInfinity);
  EXPECT_EQ(static_cast<float>(TypeParam(-kInfinity)), -kInfinity);
  EXPECT_EQ(static_cast<float>(TypeParam(std::numeric_limits<float>::max())), kInfinity);
  EXPECT_EQ(TypeParam(0.0f).bits, 0x0000);
  EXPECT_EQ(TypeParam(-0.0f).bits, 0x8000);
  EXPECT_EQ(TypeParam().bits, 0);
  EXPECT_EQ(sizeof(TypeParam), 2u);
  float nan;  // its payload lies entirely in the bits that narrowing drops
  const uint32_t word = 0x7f800001u;
  std::memcpy(&nan, &word, sizeof nan);
  EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(nan))));
}

}  // namespace
}  // namespace diffattn::testing
