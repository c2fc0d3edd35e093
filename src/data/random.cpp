// SPDX-License-Identifier: Apache-2.0
#include "diffattn/data/random.h"

#include <algorithm>
#include <bit>

namespace diffattn::data {
namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;
constexpr int kRounds = 6;

/// The finaliser of splitmix64: a bijection that changes half of the bits for any changed bit.
std::uint64_t mix(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

std::uint64_t random_at(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) noexcept {
  const std::uint64_t key = mix(mix(seed + kGolden) + stream * kGolden + 1);
  return mix(mix(key + counter * kGolden) + key);
}

std::uint64_t Random::below(std::uint64_t n) noexcept {
  // The high half of a product is even up to the first 2^64 mod n values of the low half.
  const std::uint64_t uneven = (0 - n) % n;
  for (;;) {
    const auto product = static_cast<unsigned __int128>(next()) * n;
    if (static_cast<std::uint64_t>(product) >= uneven) {
      return static_cast<std::uint64_t>(product >> 64);
    }
  }
}

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
