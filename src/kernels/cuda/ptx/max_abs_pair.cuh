// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace diffattn::cuda::ptx {

/// Returns the larger magnitude of each half of two packed pairs of T, or NaN if either is NaN. The
/// signs of the result are meaningless.
template <class T>
__device__ inline uint32_t max_abs_pair(uint32_t a, uint32_t b) {
  uint32_t larger;
  if constexpr (__is_same(T, __half)) {
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;\n" : "=r"(larger) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;\n" : "=r"(larger) : "r"(a), "r"(b));
  }
  return larger;
}

}  // namespace diffattn::cuda::ptx
