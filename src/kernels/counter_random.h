// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define DIFFATTN_ANY_DEVICE __host__ __device__
#else
#define DIFFATTN_ANY_DEVICE
#endif

namespace diffattn {

/// Returns 64 random bits for a seed and a counter: the finaliser of SplitMix64 on the counter. CPU
/// and GPU draw the same.
DIFFATTN_ANY_DEVICE inline uint64_t random_bits(uint64_t seed, uint64_t counter) {
  uint64_t z = seed + (counter + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

}  // namespace diffattn
