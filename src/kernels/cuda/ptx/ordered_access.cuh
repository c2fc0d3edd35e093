// SPDX-License-Identifier: Apache-2.0
//
// Acquire loads and release stores of global flags, with which the blocks of one launch report
// progress to each other; float4 reductions to global memory; stores to shared memory.
#pragma once

#include <cstdint>

namespace diffattn::cuda::ptx {

__device__ inline int load_acquire(const int* gmem) {
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(x) : "l"(gmem) : "memory");
  return x;
}

__device__ inline void store_release(int* gmem, int x) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;\n" ::"l"(gmem), "r"(x) : "memory");
}

/// Orders this thread's ordinary accesses to global memory against its bulk copies and bulk
/// reductions, which use the async proxy.
__device__ inline void fence_async_proxy_global() {
  asm volatile("fence.proxy.async.global;\n" ::: "memory");
}

/// Atomically adds four floats to 16-byte aligned global memory. Concurrent additions happen in any
/// order.
__device__ inline void reduce_add_float4(float* gmem, float x, float y, float z, float w) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(gmem), "f"(x),
               "f"(y), "f"(z), "f"(w)
               : "memory");
}

__device__ inline void store_smem_float4(uint32_t smem, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"r"(smem), "f"(x), "f"(y), "f"(z),
               "f"(w)
               : "memory");
}

__device__ inline void store_smem_uint4(uint32_t smem, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(smem), "r"(x.x), "r"(x.y),
               "r"(x.z), "r"(x.w)
               : "memory");
}

__device__ inline void store_smem_int(uint32_t smem, int x) {
  asm volatile("st.shared.s32 [%0], %1;\n" ::"r"(smem), "r"(x) : "memory");
}

}  // namespace diffattn::cuda::ptx
