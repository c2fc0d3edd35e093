// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace diffattn::testing {

/// The splitmix64 generator. It gives the same numbers with every compiler and standard library, so
/// that a seed which fails on one machine fails on another.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  /// Returns a number in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }

  /// Returns a nearly normal number (mean 0, deviation 1): the sum of four uniforms, at most 3.46.
  /// It needs no logarithm.
  double normal() {
    const uint64_t z = next();
    const uint64_t sum = (z & 0xffff) + ((z >> 16) & 0xffff) + ((z >> 32) & 0xffff) + (z >> 48);
    return (static_cast<double>(static_cast<int64_t>(sum)) * 0x1p-16 - 2.0) * 1.7320508075688772;
  }

  /// Returns an integer in [low, high].
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }

  bool chance(double probability) { return uniform() < probability; }

  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[next() % choices.size()];
  }

 private:
  uint64_t state_;
};

}  // namespace diffattn::testing
