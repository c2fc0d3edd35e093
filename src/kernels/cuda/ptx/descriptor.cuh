// SPDX-License-Identifier: Apache-2.0
//
// wgmma descriptors of shared-memory operands, built from addresses in units of 16 bytes. A
// descriptor is then a constant plus a 32-bit sum. wgmma.cuh describes the layouts.
#pragma once

#include <cstdint>

namespace diffattn::cuda::ptx {

/// Describes rows of 128 bytes with the 128-byte swizzle.
__device__ inline uint64_t swizzled_descriptor(uint32_t address16, uint32_t leading_bytes = 16) {
  constexpr uint64_t kSwizzle128AndEightRows = uint64_t{1u << 30 | 1024u >> 4} << 32;
  return kSwizzle128AndEightRows | (address16 + (leading_bytes >> 4 << 16));
}

/// Describes a K-major operand that stores only 8 values of the summed index: rows of 16 bytes,
/// groups of 8 rows `group_bytes` apart, no swizzle. The offset between the two halves of a k = 16
/// step is 0, so the product counts the same 8 values twice.
__device__ inline uint64_t eight_deep_descriptor(uint32_t address16, uint32_t group_bytes) {
  return (static_cast<uint64_t>(group_bytes >> 4) << 32) | address16;
}

/// Returns x in a way that the compiler cannot see through. It therefore does not hoist values
/// derived from x out of a loop, where they would occupy registers.
__device__ inline uint32_t opaque(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace diffattn::cuda::ptx
