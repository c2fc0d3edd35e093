// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Random numbers as a function of (seed, stream, counter). They are the same with every compiler
// and on every machine, and any of them can be computed directly, so a position is one number.

namespace diffattn::data {

/// The numbers of one stream in order. Inline, because generated tasks draw one number per token.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) noexcept
      : key_(mix(mix(seed + kGolden) + stream * kGolden + 1)) {}

  uint64_t next() noexcept { return at(counter_++); }
  /// Returns number `counter` of the stream. Does not affect next().
  uint64_t at(uint64_t counter) const noexcept { return mix(mix(key_ + counter * kGolden) + key_); }
  /// Returns a uniform number in [0, n), n > 0.
  uint64_t below(uint64_t n) noexcept {
    // The high half of the product is uniform if we reject the smallest 2^64 mod n values of the
    // low half. That bound is less than n, so the division is rarely needed.
    for (;;) {
      const auto product = static_cast<unsigned __int128>(next()) * n;
      const auto low = static_cast<uint64_t>(product);
      if (low >= n || low >= (0 - n) % n) return static_cast<uint64_t>(product >> 64);
    }
  }
  /// Returns a uniform number in [0, 1).
  double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

  /// The finaliser of splitmix64: a bijection in which each input bit changes about half of the
  /// output bits.
  static constexpr uint64_t mix(uint64_t z) noexcept {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  uint64_t key_, counter_ = 0;
};

/// Returns 64 random bits.
inline uint64_t random_at(uint64_t seed, uint64_t stream, uint64_t counter) noexcept {
  return Random(seed, stream).at(counter);
}

/// A shuffle of 0 ... size - 1 that needs no memory, so a run can resume anywhere in a corpus of
/// any size.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed, uint64_t stream) noexcept;
  /// Returns the image of `index`, which is below size.
  uint64_t operator()(uint64_t index) const noexcept;

 private:
  uint64_t size_, seed_, stream_;
  unsigned half_bits_;  // half of the smallest even number of bits that holds every index
};

}  // namespace diffattn::data
