// SPDX-License-Identifier: Apache-2.0
//
// Everything quadratic of the backward for D = 128, Dv = 128 or 256. Steps and names as in
// ../kernel.cuh; 64 keys a block, and warpgroup w computes map w:
//
//   (1) s = k_w q_w^T - lse_w / scale_w                        [keys, queries]
//   (2) p = exp(scale_w s)
//   (3) dp = v dO^T - delta1 for half of the queries: the 32 from 32 w on
//   (x) the warpgroups exchange p, and what each map's ds needs of dp, thread by thread
//   (4) dv += (p1 - sign(lambda) p2') dO                       half w of the columns
//   (5) ds = p_w (dp - delta_w)
//   (6) dk_w += ds q_w
//   (7) dq_w += ds^T k_w                                       ds through shared memory
//
// so that no product is computed twice, and nothing is summed over warpgroups. The asynchronous
// products, and where the warpgroup computes (dots):
//
//   s | dp . . (exchange) . dq dv dk . s(next) | ...
//
// exp of s while dp runs, the reduction of dq while dv and dk run. dq goes to its sum in global
// memory by 16-byte reductions from registers.
#pragma once

#include "kernels/cuda/sm90/backward/fragments.cuh"
#include "kernels/cuda/sm90/backward/key_tile.cuh"
#include "kernels/cuda/sm90/backward/wide/config.h"

namespace diffattn::cuda::sm90 {

/// The products of one warpgroup; `base` as in BackwardProducts.
template <class T, class C>
struct WideProducts {
  static constexpr ptx::Major kK = ptx::Major::kK, kMn = ptx::Major::kMn;
  static constexpr uint32_t kBlock = C::kBlockBytes >> 4;

  __device__ static uint32_t stage_at(uint32_t base, uint32_t stage) {
    return base + (C::kStageAt >> 4) + stage * (C::kStageBytes >> 4);
  }
  __device__ static uint32_t d_o_at(uint32_t base, uint32_t stage) {
    return stage_at(base, stage) + (2 * C::kQBytes >> 4);
  }

  /// s [64 keys, 64 queries] = k q^T - lse / scale
  __device__ static void issue_s(float (&s)[32], uint32_t base, int map, uint32_t stage) {
    const uint64_t a = ptx::swizzled_descriptor(base + ((C::kKAt + map * C::kKBytes) >> 4));
    const uint64_t b = ptx::swizzled_descriptor(stage_at(base, stage) + map * (C::kQBytes >> 4));
    ptx::Wgmma<bfloat16, 64>::ss<false, kK, kK>(
        s, ptx::eight_deep_descriptor(base + ((C::kPickAt + map * C::kPickBytes) >> 4), 0),
        ptx::eight_deep_descriptor(base + (C::kStatAt >> 4) + stage * (kStatBytes >> 4), 128));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t at = 2 * (i % 4) + i / 4 * kBlock;
      ptx::Wgmma<T, 64>::template ss<true, kK, kK>(s, a + at, b + at);
    }
    ptx::wgmma_commit();
  }

  /// dp [64 keys, 32 queries] = v dO^T - delta1, of queries 32 half on
  __device__ static void issue_dp(float (&dp)[16], uint32_t base, int half, uint32_t stage) {
    const uint64_t a = ptx::swizzled_descriptor(base + (C::kVAt >> 4));
    const uint64_t b = ptx::swizzled_descriptor(d_o_at(base, stage) + half * (32 * 128 >> 4));
    const uint32_t stat = base + (C::kStatAt >> 4) + stage * (kStatBytes >> 4);
    ptx::Wgmma<bfloat16, 32>::ss<false, kK, kK>(
        dp, ptx::eight_deep_descriptor(base + ((C::kPickAt + 2 * C::kPickBytes) >> 4), 0),
        ptx::eight_deep_descriptor(stat + half * (32 * kStatRowBytes >> 4), 128));
#pragma unroll
    for (int i = 0; i < 4 * C::kValueBlocks; ++i) {
      const uint32_t at = 2 * (i % 4) + i / 4 * kBlock;
      ptx::Wgmma<T, 32>::template ss<true, kK, kK>(dp, a + at, b + at);
    }
    ptx::wgmma_commit();
  }

  /// sum [64 keys, 2 kN] += x b, b [64 queries, 2 kN] from block `b_at` on
  template <int kN>
  __device__ static void issue_sum(float (&sum)[kN], const uint32_t (&x)[16], uint32_t b_at) {
    const uint64_t b = ptx::swizzled_descriptor(b_at, C::kBlockBytes);
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      ptx::Wgmma<T, 2 * kN>::template rs<true, kMn>(sum, &x[4 * t], b + 128 * t);
    }
    ptx::wgmma_commit();
  }

  /// dq [64 queries, 128] = ds^T k
  __device__ static void issue_dq(float (&dq)[64], uint32_t base, int map) {
    const uint64_t a = ptx::swizzled_descriptor(base + (C::kDsAt >> 4) + map * kBlock);
    const uint64_t b =
        ptx::swizzled_descriptor(base + ((C::kKAt + map * C::kKBytes) >> 4), C::kBlockBytes);
    ptx::Wgmma<T, 128>::template ss<false, kMn, kMn>(dq, a, b);
#pragma unroll
    for (int i = 1; i < 4; ++i) {
      ptx::Wgmma<T, 128>::template ss<true, kMn, kMn>(dq, a + 128 * i, b + 128 * i);
    }
    ptx::wgmma_commit();
  }
};

template <class T, class Config, bool kDeterministic>
struct WideBackward : KeyTile<T, Config, kDeterministic> {
  using Base = KeyTile<T, Config, kDeterministic>;
  using C = Config;
  using Products = WideProducts<T, Config>;
  using Base::args, Base::smem, Base::barriers, Base::w, Base::warp, Base::lane, Base::row;
  using Base::begin, Base::end, Base::start, Base::items;
  using Base::full_begin, Base::full_end, Base::next_begin, Base::next_end;
  using Base::kv_head, Base::tile, Base::group, Base::first_unit;

  // Named barriers: all threads; one warpgroup.
  static constexpr int kGiven = 1, kTaken = 2, kWarpgroup = 3;

  float dv[C::kValueDim / 4], dk[64];

  __device__ void run() {
    if (!this->find_tile()) return;
    if (kDeterministic && threadIdx.x == 0) {
      ptx::store_smem_int(smem + C::kNextAt, next_begin);
      ptx::store_smem_int(smem + C::kNextAt + 4, next_end);
    }
    start_barriers();
    for (float& x : dv) x = 0.0f;
    for (float& x : dk) x = 0.0f;
    if (items > 0) accumulate();
    const int n = tile * C::kBlockN + row;
    this->store_rows(args.dv, dv, n, C::kValueDim / 2 * w, 1.0f);
    this->store_rows(w == 0 ? args.dk1 : args.dk2, dk, n, 0, w == 0 ? args.scale : args.scale2);
  }

  __device__ void start_barriers() const {
    if (threadIdx.x == 0) {
      ptx::barrier_init(barriers + C::kKvFull, 1);
      for (uint32_t stage = 0; stage < C::kStages; ++stage) {
        ptx::barrier_init(barriers + C::kFull + 8 * stage, 1);
        ptx::barrier_init(barriers + C::kEmpty + 8 * stage, C::kWarps);
      }
      ptx::barrier_init_fence();
    }
    BackwardProducts<T, C>::store_picks(smem, static_cast<int>(threadIdx.x));
    ptx::fence_async_proxy();
    __syncthreads();  // barriers, picks and edges are there
  }

  __device__ void accumulate() {
    const bool loader = w == 1 && lane == 0;
    int load_head = 0, load_unit = start;
    if (loader) {
      this->load_item(0, 0, start);
      this->load_keys();
    }
    this->step(load_head, load_unit);
    if (loader && items > 1) this->load_item(1, load_head, load_unit);
    this->step(load_head, load_unit);

    ptx::barrier_wait(barriers + C::kKvFull, 0);
    ptx::barrier_wait(barriers + C::kFull, 0);
    float s[32];
    ptx::fresh(s);
    ptx::wgmma_fence();
    Products::issue_s(s, smem >> 4, w, 0);
    ptx::wgmma_wait<0>();
    ptx::pin(s);

    int head = 0, unit = start;
    for (int it = 0; it < items; ++it) {
      const uint32_t stage = it & 1, other = stage ^ 1;
      const uint32_t base = ptx::opaque(smem >> 4);
      float dp[16], dq[64];
      uint32_t p[16], difference[16];

      ptx::fresh(dp);
      ptx::wgmma_fence();
      Products::issue_dp(dp, base, w, stage);  // (3)
      const bool partial = unit < full_begin || unit >= full_end;
      if (partial) this->mask(s, unit);
      exp_pack<T>(s, p, w == 0 ? args.scale_log2 : args.scale2_log2);  // (2)
      float diff[8];
      load_diff(diff, stage);
      const float sign = BackwardProducts<T, C>::load_sign(smem, stage);
      ptx::wgmma_wait<0>();
      ptx::pin(dp);
      if (partial) this->flag_non_finite(dp);
      exchange(p, difference, dp, diff, sign);  // (x), (5)
      store_ds(ds_lane(), p);
      ptx::fence_async_proxy();
      ptx::named_barrier_sync(kWarpgroup + w, 128);  // ds of the map is there

      ptx::fresh(dq);
      ptx::pin(difference);
      ptx::pin(p);
      ptx::pin(dv);
      ptx::pin(dk);
      ptx::wgmma_fence();
      Products::issue_dq(dq, base, w);  // (7)
      Products::issue_sum(
          dv, difference,
          Products::d_o_at(base, stage) + C::kValueBlocks / 2 * w * Products::kBlock);      // (4)
      Products::issue_sum(dk, p, Products::stage_at(base, stage) + w * (C::kQBytes >> 4));  // (6)
      ptx::wgmma_wait<2>();
      ptx::pin(dq);
      reduce_dq(dq, head, unit);
      // s of the next unit; after the last it reads whatever is there, and the result is dropped
      if (it + 1 < items) {
        ptx::barrier_wait(barriers + C::kFull + 8 * other, ((it + 1) >> 1) & 1);
      }
      ptx::fresh(s);
      ptx::wgmma_fence();
      Products::issue_s(s, base, w, other);  // (1)
      ptx::wgmma_wait<1>();                  // dv and dk are done: the stage is free
      ptx::pin(difference);
      ptx::pin(p);
      if (lane == 0) ptx::barrier_arrive(barriers + C::kEmpty + 8 * stage);
      if (loader && it + 2 < items) {
        ptx::barrier_wait(barriers + C::kEmpty + 8 * stage, (it >> 1) & 1);
        this->load_item(it + 2, load_head, load_unit);
      }
      this->step(load_head, load_unit);
      this->step(head, unit);
      ptx::wgmma_wait<0>();
      ptx::pin(s);
    }
    ptx::pin(dv);
    ptx::pin(dk);
  }

  /// This thread's sign (delta1 - delta2) of the queries that its warpgroup computes dp for.
  __device__ void load_diff(float (&diff)[8], uint32_t stage) const {
    const uint32_t at =
        smem + C::kStatAt + kStatDiffAt + stage * kStatBytes + lane % 4 * 16 + w * 128;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const float4 x = ptx::load_smem_float4(at + t * 64);
      diff[4 * t] = x.x;
      diff[4 * t + 1] = x.y;
      diff[4 * t + 2] = x.z;
      diff[4 * t + 3] = x.w;
    }
  }

  __device__ uint32_t ds_lane() const {
    return smem + C::kDsAt + w * C::kBlockBytes + (16 * warp + lane % 16) * 128 +
           (((lane >> 4) ^ (lane & 7)) << 4);
  }

  /// In: p of this map, dp of half of the queries. Out: p becomes ds, `difference` p1 - sign p2'.
  /// A thread and its counterpart in the other warpgroup have the same keys and queries.
  __device__ void exchange(uint32_t (&p)[16], uint32_t (&difference)[16], const float (&dp)[16],
                           const float (&diff)[8], float sign) const {
    uint32_t grad1[8], grad2[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = i / 2 * 2;
      grad1[i] = pack<T>(dp[2 * i], dp[2 * i + 1]);
      grad2[i] = pack<T>(fmaf(dp[2 * i], sign, diff[at]), fmaf(dp[2 * i + 1], sign, diff[at + 1]));
    }
    const uint32_t thread = (threadIdx.x % 128) * 16;
    const uint32_t mine = smem + C::kDsAt + w * C::kBlockBytes + thread;
    const uint32_t theirs = smem + C::kDsAt + (w ^ 1) * C::kBlockBytes + thread;
    const uint32_t grad_mine = smem + C::kGradAt + w * (C::kBlockBytes / 2) + thread;
    const uint32_t grad_theirs = smem + C::kGradAt + (w ^ 1) * (C::kBlockBytes / 2) + thread;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ptx::store_smem_uint4(mine + i * 2048, {p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]});
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 of2{grad2[4 * i], grad2[4 * i + 1], grad2[4 * i + 2], grad2[4 * i + 3]};
      const uint4 of1{grad1[4 * i], grad1[4 * i + 1], grad1[4 * i + 2], grad1[4 * i + 3]};
      ptx::store_smem_uint4(grad_mine + i * 2048, w == 0 ? of2 : of1);
    }
    ptx::named_barrier_sync(kGiven, C::kThreads);  // both warpgroups' parts are there
    uint32_t grad[8];
    load_words(difference, theirs);
    load_words(grad, grad_theirs);
    ptx::named_barrier_sync(kTaken, C::kThreads);  // and have been read: ds may overwrite p
    const uint32_t signs = pack<T>(sign, sign);
    if (w == 0) {
#pragma unroll
      for (int i = 0; i < 16; ++i) difference[i] = multiply_add<T>(difference[i], signs, p[i]);
#pragma unroll
      for (int i = 0; i < 8; ++i) p[i] = multiply<T>(p[i], grad1[i]);
#pragma unroll
      for (int i = 0; i < 8; ++i) p[8 + i] = multiply<T>(p[8 + i], grad[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) difference[i] = multiply_add<T>(p[i], signs, difference[i]);
#pragma unroll
      for (int i = 0; i < 8; ++i) p[i] = multiply<T>(p[i], grad[i]);
#pragma unroll
      for (int i = 0; i < 8; ++i) p[8 + i] = multiply<T>(p[8 + i], grad2[i]);
    }
  }

  template <int kN>
  __device__ static void load_words(uint32_t (&x)[kN], uint32_t from) {
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
      const int4 words = ptx::load_smem_int4(from + i * 2048);
      x[4 * i] = words.x;
      x[4 * i + 1] = words.y;
      x[4 * i + 2] = words.z;
      x[4 * i + 3] = words.w;
    }
  }

  /// Adds this warp's 16 rows of dq to their sum, in fragment order.
  __device__ void reduce_dq(const float (&dq)[64], int head, int unit) const {
    const int number = (kv_head * group + head) * args.unit_count + first_unit + unit;
    float* const sum =
        args.dq_sums + ((static_cast<int64_t>(number) * 2 + w) * 4 + warp) * 2048 + lane * 4;
    if constexpr (kDeterministic) {
      const int first = ptx::load_smem_int(smem + C::kNextAt);
      if (unit >= first && unit < ptx::load_smem_int(smem + C::kNextAt + 4)) {
        while (ptx::load_acquire(this->dq_done(number)) != tile + 2) {
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      ptx::reduce_add_float4(sum + i * 128, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    }
    if constexpr (kDeterministic) {
      __threadfence();
      __syncwarp();
      if (lane == 0) ptx::store_release(this->dq_done(number), tile + 1);
    }
  }
};

template <class T, class Config, bool kDeterministic>
__global__ void __launch_bounds__(Config::kThreads, 1)
    backward_wide_kernel(const __grid_constant__ BackwardArguments<T> args) {
  extern __shared__ __align__(1024) char aligned_smem[];
  const uint32_t address = ptx::smem_address(aligned_smem);
  if (address % 1024 != 0) __trap();
  WideBackward<T, Config, kDeterministic>{{args, address}}.run();
}

}  // namespace diffattn::cuda::sm90
