// SPDX-License-Identifier: Apache-2.0
//
// Sum and maximum over a quad: the four lanes that hold one row of an mma accumulator fragment. All
// four lanes get the same bits.
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
