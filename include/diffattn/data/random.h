// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Random numbers that are a function of (seed, stream, counter): the same with every compiler and
// on every machine, and any of them at once, which makes a position in them one number.

namespace diffattn::data {

/// 64 random bits.
std::uint64_t random_at(std::uint64_t seed, std::uint64_t stream, std::uint64_t counter) noexcept;

/// The numbers of one stream, one after the other.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream) noexcept : seed_(seed), stream_(stream) {}

  std::uint64_t next() noexcept { return random_at(seed_, stream_, counter_++); }
  /// Evenly in [0, n), n > 0.
  std::uint64_t below(std::uint64_t n) noexcept;
  /// In [0, 1).
  double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t seed_, stream_, counter_ = 0;
};

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
