// SPDX-License-Identifier: Apache-2.0
//
// Descriptors of shared-memory operands from addresses in units of 16 bytes, so that one is a
// 32-bit addition away from a constant. Layouts as in wgmma.cuh.
#pragma once

#include <cstdint>

namespace diffattn::cuda::ptx {

/// Rows of 128 bytes with the 128-byte swizzle.
__device__ inline uint64_t swizzled_descriptor(uint32_t address16, uint32_t leading_bytes = 16) {
  constexpr uint64_t kSwizzle128AndEightRows = uint64_t{1u << 30 | 1024u >> 4} << 32;
  return kSwizzle128AndEightRows | (address16 + (leading_bytes >> 4 << 16));
}

/// A K-major operand with only 8 values of the summed index: rows of 16 bytes, groups of 8 rows
/// `group_bytes` apart, no swizzle. The second half of a step of 16 is 0 bytes away: the same 8
/// values count twice.
__device__ inline uint64_t eight_deep_descriptor(uint32_t address16, uint32_t group_bytes) {
  return (static_cast<uint64_t>(group_bytes >> 4) << 32) | address16;
}

/// x, by a way the compiler cannot see through: what is derived from it is not hoisted out of a
/// loop, where it would take registers.
__device__ inline uint32_t opaque(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace diffattn::cuda::ptx
