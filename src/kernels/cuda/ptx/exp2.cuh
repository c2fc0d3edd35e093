// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn::cuda::ptx {

/// 2^x by the special function unit, relative error 2^-22; results below 2^-126 are 0, which saves
/// the scaling around the instruction that exp2f does for them.
__device__ inline float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// 2^x for an x that is at most 0 but for rounding: a probability. NaN stays NaN.
__device__ inline float probability(float x) {
  float bounded;
  asm("min.NaN.f32 %0, %1, 0f00000000;\n" : "=f"(bounded) : "f"(x));
  return exp2(bounded);
}

}  // namespace diffattn::cuda::ptx
