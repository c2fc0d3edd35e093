// SPDX-License-Identifier: Apache-2.0
//
// The tensor memory accelerator, TMA (sm_90), copies boxes of a tensor between global and shared
// memory. A tensor map must be a __grid_constant__ kernel parameter or lie in constant or global
// memory. Coordinates c0, c1, ... start at the contiguous dimension. A load counts its bytes at an
// mbarrier. Stores and reductions form bulk groups of the issuing thread.
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

/// Loads a box into the same shared-memory offset of several blocks of the cluster; bit r of
/// `blocks` selects rank r. Each block's mbarrier at the offset of `barrier` counts the bytes.
__device__ inline void load_box_multicast(uint32_t smem, const CUtensorMap& map, uint32_t barrier,
                                          uint16_t blocks, int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;\n" ::"r"(smem),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "h"(blocks)
      : "memory");
}

/// Copies `bytes` contiguous bytes, a multiple of 16. Both addresses are 16-byte aligned.
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

/// Atomically adds `bytes` contiguous bytes of floats to global memory. Concurrent additions happen
/// in any order.
__device__ inline void reduce_add_floats(float* gmem, uint32_t smem, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n" ::"l"(gmem),
      "r"(smem), "r"(bytes)
      : "memory");
}

/// Commits the stores and reductions that this thread has issued since the last call as one group.
__device__ inline void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}

/// Waits until all but the last `kPending` groups of this thread have read their shared memory.
template <int kPending = 0>
__device__ inline void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}

/// Waits until all but the last `kPending` groups of this thread are complete and visible to it.
template <int kPending = 0>
__device__ inline void wait_stores() {
  asm volatile("cp.async.bulk.wait_group %0;\n" ::"n"(kPending) : "memory");
}

/// Makes this thread's ordinary writes to shared memory visible to TMA and wgmma, which read
/// through the async proxy.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

}  // namespace diffattn::cuda::ptx
