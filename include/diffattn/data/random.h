// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Random numbers that are a function of (seed, stream, counter): the same with every compiler and
// on every machine, and any of them at once, which makes a position in them one number.

namespace diffattn::data {

/// The numbers of one stream, one after the other. Generated tasks draw one per token while a model
/// waits for them, hence in the header.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream) noexcept
      : key_(mix(mix(seed + kGolden) + stream * kGolden + 1)) {}

  std::uint64_t next() noexcept { return at(counter_++); }
  /// Number `counter` of the stream; next() goes on where it was.
  std::uint64_t at(std::uint64_t counter) const noexcept {
    return mix(mix(key_ + counter * kGolden) + key_);
  }
  /// Evenly in [0, n), n > 0.
  std::uint64_t below(std::uint64_t n) noexcept {
    // The high half of a product is even but for the first 2^64 mod n values of the low half, which
    // is less than n: the division is hardly ever needed.
    for (;;) {
      const auto product = static_cast<unsigned __int128>(next()) * n;
      const auto low = static_cast<std::uint64_t>(product);
      if (low >= n || low >= (0 - n) % n) return static_cast<std::uint64_t>(product >> 64);
    }
  }
  /// In [0, 1).
  double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  static constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15;

  /// The finaliser of splitmix64: a bijection that changes half of the bits for any changed bit.
  static constexpr std::uint64_t mix(std::uint64_t z) noexcept {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  std::uint64_t key_, counter_ = 0;
};

/// 64 random bits.
inline std::uint64_t random_at(std::uint64_t seed, std::uint64_t stream,
                               std::uint64_t counter) noexcept {
  return Random(seed, stream).at(counter);
}

/// A shuffle of 0 ... size - 1 that is computed, not stored: a corpus of any size costs nothing,
/// and a run can resume anywhere in it.
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t stream) noexcept;
  /// Where index goes; index < size.
  std::uint64_t operator()(std::uint64_t index) const noexcept;

 private:
  std::uint64_t size_, seed_, stream_;
  unsigned half_bits_;  // of the smallest even number of bits that holds every index
};

}  // namespace diffattn::data
