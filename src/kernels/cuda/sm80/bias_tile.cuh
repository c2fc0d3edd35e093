// SPDX-License-Identifier: Apache-2.0
//
// What a mask adds to the scores of a warp's tile, through shared memory: read along the columns,
// used as the matrix instructions leave the scores.
#pragma once

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/async_copy.cuh"

namespace diffattn::cuda::sm80 {

inline constexpr int kBiasPitch = 40;  // floats; 8 more keep quads' loads off the same banks

/// tile [kRows, kBiasPitch] = biases of rows from m0 and 32 columns from n0 on, base 2; -inf where
/// a row may not see. Seen by the warp.
template <int kRows>
__device__ inline void load_bias(float* tile, const HeadMask& mask, int m0, int n0) {
  const int lane = ptx::reread_thread() % kWarpSize;
  __syncwarp();  // nobody reads the last ones any more
#pragma unroll 4
  for (int row = 0; row < kRows; ++row) {
    tile[row * kBiasPitch + lane] = mask.bias(m0 + row, n0 + lane);
  }
  __syncwarp();  // they are there
}

/// s [16, 8 kN8] += biases of a tile's first 16 rows; -inf replaces a NaN.
template <int kN8>
__device__ inline void add_bias(float (&s)[kN8][4], const float* tile) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float* const row = tile + (r * 8 + lane / 4) * kBiasPitch + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kN8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float bias = row[j * 8 + e];
        float& x = s[j][2 * r + e];
        x = bias == -INFINITY ? bias : x + bias;
      }
    }
  }
}

}  // namespace diffattn::cuda::sm80
