// SPDX-License-Identifier: Apache-2.0
//
// The statistics of a unit of 64 query rows, kStatBytes as the main kernel reads them:
//
//   64 rows of 8 bf16, all halved: -lse1 / scale as a sum of three, -lse2' / scale2 as a sum of
//       three, -delta1 as a sum of two
//   64 floats: sign (delta1 - delta2), in the order of `stat_slot`
//   1 float: sign = -1 where lambda >= 0, 1 where it is negative; one for the whole unit
//
// lse2' = lse2 - log |lambda|, so that p2' = exp(scale2 s2 - lse2') = |lambda| p2. The bf16 rows
// are an operand of one more step of the products that make s1, s2 and dp, which saves most of the
// shared-memory loads that statistics of columns need. bf16 whatever T is: -lse2' can be huge.
#pragma once

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/sm90/backward/config.h"

namespace diffattn::cuda::sm90 {

/// A thread's accumulators of a tile [keys, 64 queries] cover the queries 8i + 2t + {0, 1}, i < 8,
/// t = lane % 4. The floats lie so that the thread reads its own with four 16-byte loads, the four
/// t side by side.
__device__ inline int stat_slot(int row) {
  const int i = row / 8, t = row / 2 % 4, e = row % 2;
  return i / 2 * 16 + t * 4 + i % 2 * 2 + e;
}

/// x as a sum of kCount bf16 numbers, the largest first.
template <int kCount>
__device__ inline void split_bf16(float x, bfloat16* parts) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    parts[i] = __float2bfloat16_rn(x);
    x -= __bfloat162float(parts[i]);
  }
}

}  // namespace diffattn::cuda::sm90
