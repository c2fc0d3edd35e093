// SPDX-License-Identifier: Apache-2.0
//
// The wgmma products of wide/kernel.cuh.
#pragma once

#include "kernels/cuda/sm90/backward/fragments.cuh"
#include "kernels/cuda/sm90/backward/wide/config.h"

namespace diffattn::cuda::sm90 {

/// The wgmma products of one warpgroup; each function issues and commits one group. `base` is the
/// address of shared memory in units of 16 bytes.
template <class T, class C>
struct WideProducts {
  static constexpr ptx::Major kK = ptx::Major::kK, kMn = ptx::Major::kMn;
  static constexpr uint32_t kBlock = C::kBlockBytes >> 4;

  __device__ static uint32_t q_at(uint32_t base, uint32_t stage) {
    return base + (C::kQAt >> 4) + stage * (C::kQBytes >> 4);
  }
  __device__ static uint32_t d_o_at(uint32_t base, uint32_t stage) {
    return base + (C::kDoAt >> 4) + stage * (C::kDoBytes >> 4);
  }
  __device__ static uint64_t pick(uint32_t base, int which) {
    return ptx::eight_deep_descriptor(base + ((C::kPickAt + which * C::kPickBytes) >> 4), 0);
  }
  __device__ static uint32_t stat_at(uint32_t base, uint32_t stage) {
    return base + (C::kStatAt >> 4) + stage * (kStatBytes >> 4);
  }

  /// Issues s [64 keys, 64 queries] = k q^T - lse / scale.
  __device__ static void issue_s(float (&s)[32], uint32_t base, int map, int w, uint32_t stage) {
    const uint64_t a = ptx::swizzled_descriptor(base + (C::kKAt >> 4) + w * kBlock);
    const uint64_t b = ptx::swizzled_descriptor(q_at(base, stage));
    ptx::Wgmma<bfloat16, 64>::ss<false, kK, kK>(
        s, pick(base, map), ptx::eight_deep_descriptor(stat_at(base, stage), 128));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      ptx::Wgmma<T, 64>::template ss<true, kK, kK>(
          s, a + 2 * (i % 4) + i / 4 * (C::kKBlockBytes >> 4), b + 2 * (i % 4) + i / 4 * kBlock);
    }
    ptx::wgmma_commit();
  }

  /// Issues dp [64 keys, 32 queries] = v dO^T - delta1 for the queries from 32 half on.
  __device__ static void issue_dp(float (&dp)[16], uint32_t base, int half, uint32_t stage,
                                  uint32_t stat_stage) {
    const uint64_t a = ptx::swizzled_descriptor(base + (C::kVAt >> 4));
    const uint64_t b = ptx::swizzled_descriptor(d_o_at(base, stage) + half * (32 * 128 >> 4));
    ptx::Wgmma<bfloat16, 32>::ss<false, kK, kK>(
        dp, pick(base, 2),
        ptx::eight_deep_descriptor(stat_at(base, stat_stage) + half * (32 * kStatRowBytes >> 4),
                                   128));
#pragma unroll
    for (int i = 0; i < 4 * C::kValueBlocks; ++i) {
      const uint32_t at = 2 * (i % 4) + i / 4 * kBlock;
      ptx::Wgmma<T, 32>::template ss<true, kK, kK>(dp, a + at, b + at);
    }
    ptx::wgmma_commit();
  }

  /// Issues sum [64 keys, 2 kN] += x b, where b [64 queries, 2 kN] starts at column block `b_at`.
  template <int kN>
  __device__ static void issue_sum(float (&sum)[kN], const uint32_t (&x)[16], uint32_t b_at) {
    const uint64_t b = ptx::swizzled_descriptor(b_at, C::kBlockBytes);
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      ptx::Wgmma<T, 2 * kN>::template rs<true, kMn>(sum, &x[4 * t], b + 128 * t);
    }
    ptx::wgmma_commit();
  }

  /// Issues dq [64 queries, 64] = ds^T k over 128 keys, for the columns from 64 half on.
  __device__ static void issue_dq(float (&dq)[32], uint32_t base, int half) {
    const uint64_t a = ptx::swizzled_descriptor(base + (C::kDsAt >> 4));
    const uint64_t b =
        ptx::swizzled_descriptor(base + (C::kKAt >> 4) + half * (C::kKBlockBytes >> 4));
    ptx::Wgmma<T, 64>::template ss<false, kMn, kMn>(dq, a, b);
#pragma unroll
    for (int i = 1; i < 8; ++i) {
      ptx::Wgmma<T, 64>::template ss<true, kMn, kMn>(dq, a + 128 * i, b + 128 * i);
    }
    ptx::wgmma_commit();
  }
};

}  // namespace diffattn::cuda::sm90
