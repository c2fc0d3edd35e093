// SPDX-License-Identifier: Apache-2.0
//
// Barriers in shared memory, named barriers, clusters of blocks, and register budgets (sm_90).
// Addresses are those of `smem_address`. A phase of a barrier completes when all arrivals and all
// announced bytes are in; `parity` is the number of the phase & 1.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/async_copy.cuh"

namespace diffattn::cuda::ptx {

__device__ inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals)
               : "memory");
}

/// Makes initialised barriers visible to the copy engine and to the other blocks of a cluster.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

/// True in one lane of the warp, found without a register that holds its number.
__device__ inline bool elect_lane() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n"
               : "=r"(elected));
  return elected != 0;
}

/// Arrives, and announces bytes that copies will bring.
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

/// Whether it has completed; does not wait.
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

/// `barrier_wait` for a thread that has nothing to do meanwhile: polled rarely.
__device__ inline void barrier_wait_idle(uint32_t barrier, uint32_t parity) {
  constexpr uint32_t kNanoseconds = 10000;
  asm volatile(
      "{\n.reg .pred done;\n"
      "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
      "@done bra DONE;\nbra WAIT;\nDONE:\n}\n" ::"r"(barrier),
      "r"(parity), "r"(kNanoseconds)
      : "memory");
}

/// Kernels launched to overlap the one before them (programmatic dependent launch); nothing in code
/// for older GPUs. The next one may start once every block has said so or ended.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
/// Waits until the kernel before has ended and what it wrote is visible.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

/// Named barriers 1 .. 15 of a block; `threads` counts those that arrive and those that wait.
__device__ inline void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

/// Registers of each thread of this warpgroup from here on; a kernel's launch bounds must name one
/// block per multiprocessor for it to take effect.
template <int kRegisters>
__device__ inline void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

/// 0, but the compiler does not know. Addresses derived from it stay inside their loop: hoisted out
/// of it, 64-bit descriptors would spill.
__device__ inline uint32_t opaque_zero() {
  uint32_t zero;
  asm volatile("mov.u32 %0, 0;\n" : "=r"(zero));
  return zero;
}

/// Loads that the compiler may not keep in registers for later.
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

/// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void store_matrix_x4(uint32_t smem, uint32_t r0, uint32_t r1, uint32_t r2,
                                       uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(smem),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// Clusters. A block's own shared address is valid in the cluster's window too.

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}

/// The same place in the shared memory of block `rank`.
__device__ inline uint32_t remote_address(uint32_t smem, uint32_t rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(remote) : "r"(smem), "r"(rank));
  return remote;
}

__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::
                   : "memory");
}

/// Says that reads are done. Without .release.cluster, which is a fence over the whole GPU; data
/// for another block goes by `store_remote`, whose barrier counts the bytes.
__device__ inline void barrier_arrive_remote(uint32_t remote_barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(remote_barrier) : "memory");
}

/// 4 or 16 bytes into another block; they count towards what its barrier expects.
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
