// SPDX-License-Identifier: Apache-2.0
//
// The tensor memory accelerator (sm_90): boxes of a tensor between global and shared memory. A
// tensor map must be a __grid_constant__ kernel parameter or lie in constant or global memory.
// Coordinates run from the contiguous dimension outwards. Loads announce their bytes to a barrier;
// stores and reductions form groups of the issuing thread.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/ptx/async_copy.cuh"

namespace diffattn::cuda::ptx {

__device__ inline void prefetch_tensor_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}

__device__ inline void load_box(uint32_t smem, const CUtensorMap& map, uint32_t barrier, int c0,
                                int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4}], [%2];\n" ::"r"(smem),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1)
      : "memory");
}
__device__ inline void load_box(uint32_t smem, const CUtensorMap& map, uint32_t barrier, int c0,
                                int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5}], [%2];\n" ::"r"(smem),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
__device__ inline void load_box(uint32_t smem, const CUtensorMap& map, uint32_t barrier, int c0,
                                int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(smem),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
__device__ inline void load_box(uint32_t smem, const CUtensorMap& map, uint32_t barrier, int c0,
                                int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6, %7}], [%2];\n" ::"r"(smem),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

/// Into the same place of every block of `blocks` (a bit per rank of the cluster); each one's
/// barrier at the same place gets the bytes.
__device__ inline void load_box_multicast(uint32_t smem, const CUtensorMap& map, uint32_t barrier,
                                          uint16_t blocks, int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;\n" ::"r"(smem),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "h"(blocks)
      : "memory");
}

/// `bytes` (a multiple of 16) that are contiguous on both sides, 16-byte aligned.
__device__ inline void load_bytes(uint32_t smem, const void* gmem, uint32_t bytes,
                                  uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];\n" ::"r"(smem),
      "l"(gmem), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ inline void store_box(const CUtensorMap& map, uint32_t smem, int c0, int c1, int c2,
                                 int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];\n" ::"l"(
          &map),
      "r"(smem), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
__device__ inline void store_box(const CUtensorMap& map, uint32_t smem, int c0, int c1, int c2,
                                 int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], "
      "[%1];\n" ::"l"(&map),
      "r"(smem), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

/// Adds floats to global memory, `bytes` contiguous on both sides. The order of sums is open.
__device__ inline void reduce_add_floats(float* gmem, uint32_t smem, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n" ::"l"(gmem),
      "r"(smem), "r"(bytes)
      : "memory");
}

/// Ends the group of stores this thread has issued since the last call.
__device__ inline void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}

/// Waits until all but `kPending` of this thread's groups have read their shared memory.
template <int kPending = 0>
__device__ inline void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}

/// Waits until all but `kPending` of this thread's groups are done and visible.
template <int kPending = 0>
__device__ inline void wait_stores() {
  asm volatile("cp.async.bulk.wait_group %0;\n" ::"n"(kPending) : "memory");
}

/// Makes this thread's ordinary writes to shared memory visible to copies and warpgroup products.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

}  // namespace diffattn::cuda::ptx
