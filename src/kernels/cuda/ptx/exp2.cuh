// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn::cuda::ptx {

/// Returns 2^x from the special function unit, with a relative error of 2^-22. Results below 2^-126
/// become 0; exp2f would spend extra instructions on scaling them.
__device__ inline float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// Returns min(2^x, 1): a probability whose exponent x may exceed 0 by a rounding error. NaN stays
/// NaN.
__device__ inline float probability(float x) {
  float bounded;
  asm("min.NaN.f32 %0, %1, 0f00000000;\n" : "=f"(bounded) : "f"(x));
  return exp2(bounded);
}

}  // namespace diffattn::cuda::ptx
