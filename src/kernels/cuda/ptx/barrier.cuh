// SPDX-License-Identifier: Apache-2.0
//
// mbarriers, named barriers, thread block clusters and setmaxnreg (sm_90). Shared-memory addresses
// come from `smem_address`. A phase of an mbarrier completes once all arrivals and all expected
// bytes have come in. `parity` is the phase number & 1, counted from 0.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/async_copy.cuh"

namespace diffattn::cuda::ptx {

__device__ inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals)
               : "memory");
}

/// Makes initialised mbarriers visible to TMA and to the other blocks of a cluster.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

/// True in exactly one lane of the warp. Unlike `lane == 0` it needs no register for the lane
/// number.
__device__ inline bool elect_lane() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n"
               : "=r"(elected));
  return elected != 0;
}

/// Arrives and adds `bytes` to the bytes that copies must deliver before the phase completes.
__device__ inline void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\nbra WAIT;\nDONE:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// True if the phase of this parity has completed. Does not wait.
__device__ inline bool barrier_completed(uint32_t barrier, uint32_t parity) {
  uint32_t completed;
  asm volatile(
      "{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n}\n"
      : "=r"(completed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return completed != 0;
}

/// `barrier_wait` for a producer thread: a suspend-time hint of 10 us makes it poll rarely, which
/// leaves issue slots to the consumer warps.
__device__ inline void barrier_wait_idle(uint32_t barrier, uint32_t parity) {
  constexpr uint32_t kNanoseconds = 10000;
  asm volatile(
      "{\n.reg .pred done;\n"
      "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
      "@done bra DONE;\nbra WAIT;\nDONE:\n}\n" ::"r"(barrier),
      "r"(parity), "r"(kNanoseconds)
      : "memory");
}

/// Programmatic dependent launch: lets the next kernel in the stream start once every block of this
/// one has called it or ended. Does nothing before sm_90.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
/// Waits until the previous kernel in the stream has ended and its writes are visible. Does nothing
/// before sm_90.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

/// Named barriers 1 .. 15 of a block. `threads` counts the arriving and the waiting threads.
__device__ inline void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

/// Sets the registers per thread of this warpgroup. This takes effect only if the kernel's launch
/// bounds name a minimum of one block per multiprocessor.
template <int kRegisters>
__device__ inline void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

/// Returns 0, which the compiler cannot see. It therefore recomputes addresses derived from it in
/// each iteration; hoisted out of the loop, the 64-bit descriptors would spill.
__device__ inline uint32_t opaque_zero() {
  uint32_t zero;
  asm volatile("mov.u32 %0, 0;\n" : "=r"(zero));
  return zero;
}

/// Shared-memory loads that the compiler cannot merge or keep in registers.
__device__ inline int load_smem_int(uint32_t smem) {
  int x;
  asm volatile("ld.shared.s32 %0, [%1];\n" : "=r"(x) : "r"(smem) : "memory");
  return x;
}
__device__ inline int4 load_smem_int4(uint32_t smem) {
  int4 x;
  asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(smem)
               : "memory");
  return x;
}
__device__ inline float4 load_smem_float4(uint32_t smem) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(smem)
               : "memory");
  return x;
}

/// Stores four 8x8 matrices of 16-bit elements. Lane i passes the address of row i % 8 of matrix
/// i / 8.
__device__ inline void store_matrix_x4(uint32_t smem, uint32_t r0, uint32_t r1, uint32_t r2,
                                       uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(smem),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// Clusters. A block's own shared-memory address is also valid as a shared::cluster address.

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}

/// Returns the shared::cluster address of the same offset in the shared memory of block `rank`.
__device__ inline uint32_t remote_address(uint32_t smem, uint32_t rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(remote) : "r"(smem), "r"(rank));
  return remote;
}

__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::
                   : "memory");
}

/// Arrives at an mbarrier of another block, to announce that this thread's reads are done. It omits
/// .release.cluster, which would be a fence over the whole GPU. Data for another block needs no
/// such fence: `store_remote` delivers it and the mbarrier counts its bytes.
__device__ inline void barrier_arrive_remote(uint32_t remote_barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(remote_barrier) : "memory");
}

/// Stores 4 or 16 bytes into another block's shared memory and counts them at its mbarrier.
__device__ inline void store_remote(uint32_t remote, uint32_t remote_barrier, int x) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.s32 [%0], %2, [%1];\n" ::"r"(
          remote),
      "r"(remote_barrier), "r"(x)
      : "memory");
}
__device__ inline void store_remote(uint32_t remote, uint32_t remote_barrier, float4 x) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, "
      "[%1];\n" ::"r"(remote),
      "r"(remote_barrier), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
      : "memory");
}

}  // namespace diffattn::cuda::ptx
