// SPDX-License-Identifier: Apache-2.0
//
// cp.async: asynchronous copies from global to shared memory (sm_80 and later).
#pragma once

#include <cstdint>

namespace diffattn::cuda::ptx {

/// Returns the 32-bit shared-memory address that the instructions of this folder take.
__device__ inline uint32_t smem_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Returns threadIdx.x. The compiler cannot reuse an earlier read, so it does not keep values that
/// it derived from that read in registers.
__device__ inline int reread_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
  return thread;
}

/// Copies 16 bytes, or writes zeros without reading `gmem` if `valid` is false. Both addresses are
/// 16-byte aligned.
__device__ inline void copy_16_or_zero(uint32_t smem, const void* gmem, bool valid) {
  const int source_bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(smem), "l"(gmem),
               "r"(source_bytes)
               : "memory");
}

/// Copies the first `bytes` of 16 bytes and writes zeros after them. Both addresses are 16-byte
/// aligned.
__device__ inline void copy_16_partly(uint32_t smem, const void* gmem, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(smem), "l"(gmem), "r"(bytes)
               : "memory");
}

/// Stores 16 bytes from registers. Other threads see them after a barrier, as with the copies.
__device__ inline void store_16(uint32_t smem, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(smem), "r"(x.x), "r"(x.y),
               "r"(x.z), "r"(x.w)
               : "memory");
}

__device__ inline void store_4(uint32_t smem, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(smem), "r"(x) : "memory");
}

/// Copies 4 bytes, or writes zeros if `valid` is false. Both addresses are 4-byte aligned.
__device__ inline void copy_4_or_zero(uint32_t smem, const void* gmem, bool valid) {
  const int source_bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(smem), "l"(gmem),
               "r"(source_bytes)
               : "memory");
}

/// Copies the first `bytes` of 4 bytes and writes zeros after them. Both addresses are 4-byte
/// aligned.
__device__ inline void copy_4_partly(uint32_t smem, const void* gmem, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(smem), "l"(gmem), "r"(bytes)
               : "memory");
}

/// Commits the copies that this thread has issued since the last call as one group.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

/// Waits until at most `kPending` of this thread's groups are still in flight.
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace diffattn::cuda::ptx
