// SPDX-License-Identifier: Apache-2.0
//
// Masks a score accumulator by column limits. A thread holds x[4c + 2r + e], which is column 8c + e
// (e = 0, 1) of row g + 8r (r = 0, 1). Columns count from the thread's first one.
#pragma once

#include <cmath>
#include <cstdint>

namespace diffattn::cuda::sm90 {

/// Returns a word whose bit 2c + e is set if column 8c + e is below `limit`.
__device__ __forceinline__ uint32_t columns_below(int limit) {
  const int count = max(0, (limit >> 3) * 2 + min(limit & 7, 2));
  return count < 32 ? (1u << count) - 1 : ~0u;
}

/// Writes -inf to the columns below a limit (kBelow) or from the limit on (!kBelow). limit0 belongs
/// to row g, limit1 to row g + 8; both are relative to the thread's first column. The compiler
/// turns seven bit tests into one instruction; comparisons would take one each.
template <bool kBelow, int kN>
__device__ __forceinline__ void mask_columns(float (&x)[kN], int limit0, int limit1) {
  static_assert(kN <= 64);
  const uint32_t below[2] = {columns_below(limit0), columns_below(limit1)};
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    const bool hidden = (below[i / 2 % 2] & 1u << (i / 4 * 2 + i % 2)) != 0;
    if (hidden == kBelow) x[i] = -INFINITY;
  }
}

}  // namespace diffattn::cuda::sm90
