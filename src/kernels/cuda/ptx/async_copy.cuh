// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous copies from global to shared memory (sm_80 and later).
#pragma once

#include <cstdint>

namespace diffattn::cuda::ptx {

__device__ inline uint32_t smem_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// threadIdx.x, read anew, so that the compiler keeps nothing that follows from it in registers.
__device__ inline int reread_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
  return thread;
}

/// 16 bytes, both sides 16-byte aligned; zeros instead when not `valid` (nothing is read then).
__device__ inline void copy_16_or_zero(uint32_t smem, const void* gmem, bool valid) {
  const int source_bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(smem), "l"(gmem),
               "r"(source_bytes)
               : "memory");
}

/// The first `bytes` of 16, both sides 16-byte aligned, and zeros after them.
__device__ inline void copy_16_partly(uint32_t smem, const void* gmem, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(smem), "l"(gmem), "r"(bytes)
               : "memory");
}

/// 16 bytes from registers, seen by others after a barrier like the copies.
__device__ inline void store_16(uint32_t smem, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(smem), "r"(x.x), "r"(x.y),
               "r"(x.z), "r"(x.w)
               : "memory");
}

__device__ inline void store_4(uint32_t smem, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(smem), "r"(x) : "memory");
}

/// 4 bytes, both sides 4-byte aligned; zero instead when not `valid`.
__device__ inline void copy_4_or_zero(uint32_t smem, const void* gmem, bool valid) {
  const int source_bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(smem), "l"(gmem),
               "r"(source_bytes)
               : "memory");
}

/// The first `bytes` of 4, both sides 4-byte aligned, and zeros after them.
__device__ inline void copy_4_partly(uint32_t smem, const void* gmem, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(smem), "l"(gmem), "r"(bytes)
               : "memory");
}

/// Ends the group of copies this thread has issued since the last call.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

/// Waits until at most `kPending` of this thread's groups are still under way.
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace diffattn::cuda::ptx
