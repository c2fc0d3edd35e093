// SPDX-License-Identifier: Apache-2.0
//
// Sums and maxima over the four lanes that share a row of a matrix instruction's result. All four
// get the same bits.
#pragma once

namespace diffattn::cuda {

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

}  // namespace diffattn::cuda
