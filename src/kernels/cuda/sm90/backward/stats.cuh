// SPDX-License-Identifier: Apache-2.0
//
// The layout of a unit's statistics, kStatBytes for 64 query rows:
//
//   64 rows of 8 bf16: -lse1 / scale as a sum of three, -lse2' / scale2 as a sum of three, -delta1
//       as a sum of two; all halved, because `eight_deep_descriptor` counts them twice
//   64 floats: sign (delta1 - delta2), in the order of `stat_slot`
//   1 float: sign = -1 if lambda >= 0 in all rows of the unit, else 1
//
// lse2' = lse2 - log |lambda| folds |lambda| into p2' = exp(scale2 s2 - lse2') = |lambda| p2.
//
// In tiles [keys, queries] the statistics belong to columns, and a thread would have to load one
// for each of its columns. Instead the bf16 rows are the operand of one more k-step of the products
// s1, s2 and dp (`put_stat`). They are bf16 for every T, because -lse2' can be huge.
#pragma once

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/sm90/backward/config.h"

namespace diffattn::cuda::sm90 {

/// Returns where the float of a row is stored. A thread's accumulators of a tile [keys, 64 queries]
/// cover the queries 8i + 2t + {0, 1} with i < 8, t = lane % 4. In this order a thread loads its 16
/// floats with four 16-byte loads, and the loads of a quad are contiguous.
__device__ inline int stat_slot(int row) {
  const int i = row / 8, t = row / 2 % 4, e = row % 2;
  return i / 2 * 16 + t * 4 + i % 2 * 2 + e;
}

/// Splits x into a sum of kCount bf16 numbers, the largest first.
template <int kCount>
__device__ inline void split_bf16(float x, bfloat16* parts) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    parts[i] = __float2bfloat16_rn(x);
    x -= __bfloat162float(parts[i]);
  }
}

}  // namespace diffattn::cuda::sm90
