// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn::cuda::ptx {

#if __CUDA_ARCH__ >= 900
/// Atomically adds x to to[0 .. 3], each element on its own. `to` is 16-byte aligned (sm_90).
__device__ inline void atomic_add_4(float* to, const float (&x)[4]) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "f"(x[0]), "f"(x[1]),
               "f"(x[2]), "f"(x[3])
               : "memory");
}
#endif

}  // namespace diffattn::cuda::ptx
