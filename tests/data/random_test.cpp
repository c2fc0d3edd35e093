// SPDX-License-Identifier: Apache-2.0
#include "diffattn/data/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

namespace diffattn::data::random_test {
namespace {

// Computed with Python's integers. The numbers must never change between versions, because saved
// positions would then mean other data.
TEST(Random, TheNumbersNeverChange) {
  const std::array<uint64_t, 4> expected[] = {
      {0u, 0u, 0u, 0x4beec0e117e08c11u},
      {1u, 0u, 0u, 0x5ab299d8bcee887au},
      {0u, 1u, 0u, 0xff207495b0731674u},
      {0u, 0u, 1u, 0xd92c108761c5459cu},
      {11u, 5u, 1234567u, 0x14cd769dad13f765u},
      {18446744073709551615u, 18446744073709551615u, 18446744073709551615u, 0xcb4573fb38d38ecdu},
  };
  for (const auto& [seed, stream, counter, value] : expected) {
    EXPECT_EQ(random_at(seed, stream, counter), value);
  }
}

TEST(Random, BelowIsUniform) {
  Random random(5, 6);
  std::array<int, 7> counts{};
  for (int i = 0; i < 70'000; ++i) ++counts[random.below(7)];
  // Five standard deviations of a binomial with n = 70000, p = 1/7.
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 463);
  EXPECT_EQ(random.below(1), 0u);
  for (int i = 0; i < 100; ++i) EXPECT_LT(random.below((1ull << 63) + 1), (1ull << 63) + 1);
}

TEST(Random, UniformIsInRange) {
  Random random(1, 2);
  double sum = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double value = random.uniform();
    ASSERT_TRUE(value >= 0 && value < 1);
    sum += value;
  }
  EXPECT_NEAR(sum / 100'000, 0.5, 0.005);
}

TEST(Permutation, TheOrderNeverChanges) {
  std::vector<uint64_t> order;
  for (uint64_t i = 0; i < 10; ++i) order.push_back(Permutation(10, 11, 0)(i));
  EXPECT_EQ(order, (std::vector<uint64_t>{7, 0, 1, 6, 3, 4, 8, 2, 9, 5}));
}

TEST(Permutation, EveryIndexOnce) {
  std::vector<uint64_t> sizes = {1000, 4096, 4097, 65'537};
  for (uint64_t size = 1; size < 200; ++size) sizes.push_back(size);
  for (const uint64_t size : sizes) {
    for (uint64_t stream = 0; stream < 3; ++stream) {
      const Permutation permutation(size, 7, stream);
      std::vector<bool> seen(size);
      for (uint64_t i = 0; i < size; ++i) {
        const uint64_t place = permutation(i);
        ASSERT_LT(place, size);
        ASSERT_FALSE(seen[place]) << size;
        seen[place] = true;
      }
    }
  }
}

// Over many seeds, each index goes to each position about equally often, and neighbours separate.
TEST(Permutation, IsAShuffle) {
  constexpr uint64_t kSize = 12;
  constexpr int kSeeds = 12'000;
  std::array<std::array<int, kSize>, kSize> counts{};
  int stay_neighbours = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    const Permutation permutation(kSize, static_cast<uint64_t>(seed), 0);
    for (uint64_t i = 0; i < kSize; ++i) ++counts[i][permutation(i)];
    stay_neighbours += permutation(0) + 1 == permutation(1);
  }
  for (const auto& row : counts) {
    for (const int count : row) EXPECT_NEAR(count, kSeeds / 12, 160);
  }
  EXPECT_NEAR(stay_neighbours, kSeeds / 12, 160);  // 11 of 132 ordered pairs
}

TEST(Permutation, LargeSizesNeedNoMemory) {
  const uint64_t size = (1ull << 50) + 12345;
  const Permutation permutation(size, 1, 2);
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_LT(permutation(i * 1'000'003), size);
}

}  // namespace
}  // namespace diffattn::data::random_test
