// SPDX-License-Identifier: Apache-2.0
#include "diffattn/data/random.h"

#include <algorithm>
#include <bit>

namespace diffattn::data {
namespace {

constexpr int kRounds = 6;

}  // namespace

Permutation::Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t stream) noexcept
    : size_(size), seed_(seed), stream_(stream) {
  const unsigned bits = size > 1 ? static_cast<unsigned>(std::bit_width(size - 1)) : 1;
  half_bits_ = std::max(1u, (bits + 1) / 2);
}

std::uint64_t Permutation::operator()(std::uint64_t index) const noexcept {
  // A Feistel network permutes 2^(2 half_bits) numbers; those beyond size are permuted again until
  // one within comes out, in four steps on average at most.
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  do {
    std::uint64_t left = index >> half_bits_, right = index & mask;
    for (int round = 0; round < kRounds; ++round) {
      const auto salt = static_cast<std::uint64_t>(round) << 40;
      const std::uint64_t next = left ^ (random_at(seed_, stream_, salt ^ right) & mask);
      left = right;
      right = next;
    }
    index = left << half_bits_ | right;
  } while (index >= size_);
  return index;
}

}  // namespace diffattn::data
