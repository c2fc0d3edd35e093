// SPDX-License-Identifier: Apache-2.0
#include "diffattn/data/random.h"

#include <algorithm>
#include <bit>

namespace diffattn::data {
namespace {

constexpr int kRounds = 6;

}  // namespace

Permutation::Permutation(uint64_t size, uint64_t seed, uint64_t stream) noexcept
    : size_(size), seed_(seed), stream_(stream) {
  const unsigned bits = size > 1 ? static_cast<unsigned>(std::bit_width(size - 1)) : 1;
  half_bits_ = std::max(1u, (bits + 1) / 2);
}

uint64_t Permutation::operator()(uint64_t index) const noexcept {
  // A Feistel network permutes 2^(2 half_bits) numbers. We apply it until the result is below size,
  // at most four times on average.
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = index >> half_bits_, right = index & mask;
    for (int round = 0; round < kRounds; ++round) {
      const auto salt = static_cast<uint64_t>(round) << 40;
      const uint64_t next = left ^ (random_at(seed_, stream_, salt ^ right) & mask);
      left = right;
      right = next;
    }
    index = left << half_bits_ | right;
  } while (index >= size_);
  return index;
}

}  // namespace diffattn::data
