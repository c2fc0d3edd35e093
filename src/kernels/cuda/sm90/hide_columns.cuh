// SPDX-License-Identifier: Apache-2.0
//
// Masks on an accumulator. A thread has two rows of it, g and g + 8, and of these the columns
// 8c + {0, 1}: x[4c + 2r + e] is column 8c + e of row g + 8r.
#pragma once

#include <cmath>
#include <cstdint>

namespace diffattn::cuda::sm90 {

/// Bit 2c + e: is column 8c + e below the limit?
__device__ __forceinline__ uint32_t columns_below(int limit) {
  const int count = max(0, (limit >> 3) * 2 + min(limit & 7, 2));
  return count < 32 ? (1u << count) - 1 : ~0u;
}

/// Columns below a limit (kBelow) or from it on get -inf: limit0 for row g, limit1 for g + 8, both
/// relative to this thread's first column. Tests of bits become one instruction for seven columns,
/// comparisons one for each.
template <bool kBelow, int kN>
__device__ __forceinline__ void hide_columns(float (&x)[kN], int limit0, int limit1) {
  static_assert(kN <= 64);
  const uint32_t below[2] = {columns_below(limit0), columns_below(limit1)};
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    const bool hidden = (below[i / 2 % 2] & 1u << (i / 4 * 2 + i % 2)) != 0;
    if (hidden == kBelow) x[i] = -INFINITY;
  }
}

}  // namespace diffattn::cuda::sm90
