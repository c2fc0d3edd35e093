// SPDX-License-Identifier: Apache-2.0
//
// The main kernel of the backward for D = 128, Dv = 128 or 256. Inputs, outputs, items and symbols
// are those of ../kernel.cuh. A cluster of two blocks owns a tile of 128 keys. Block c (0 or 1)
// computes map c + 1; below, q, k, lse, scale, p and ds without a number belong to that map. The
// block also computes dp and dv, which both maps share, for the 64 keys from 64 c on. Its warpgroup
// w computes for each item:
//
//   (1) s = k q^T - lse / scale                      64 keys from 64 w on, 64 queries
//   (2) p = exp(scale s)                             as (1); p is p1 or p2'
//   (3) dp = v dO^T - delta1                         64 keys from 64 c on, 32 queries from 32 w on
//   (x) The blocks exchange p and dp: a block needs p of both maps for its keys of dv, and dp of
//       all 128 keys for its ds.
//   (4) dv += (p1 - sign(lambda) p2') dO             64 keys from 64 c on, half w of the columns
//   (5) ds = p dp, or for map 2                      as (1)
//       ds = -sign(lambda) p (dp + delta1 - delta2)
//   (6) dk += ds q                                   as (1)
//   (7) dq += ds^T k                                 all 128 keys, half w of the columns
//
// No product is computed twice. A block sums dq over its 128 keys in registers and adds the result
// to global memory with 16-byte reductions. If one block computed both maps, its registers would
// hold dk1, dk2 and dv of only 64 keys, and dq would need twice as many reductions.
//
// An iteration of a warpgroup issues these wgmma groups; the dots mark its own arithmetic:
//
//   dq dv . dp(next) dk . s(after next) . | ...
//
// At the first dot, it adds dq to the sums while dv runs. At the second, it computes exp(s(next))
// while dp(next) and dk run. At the third, it exchanges p and dp while dk and s(after next) run.
// Lane 0 of three warps of warpgroup 1 issues the TMA loads.
#pragma once

#include "kernels/cuda/sm90/backward/key_tile.cuh"
#include "kernels/cuda/sm90/backward/wide/products.cuh"

namespace diffattn::cuda::sm90 {

template <class T, class Config, bool kDeterministic>
struct WideBackward : KeyTile<T, Config, kDeterministic> {
  using Base = KeyTile<T, Config, kDeterministic>;
  using C = Config;
  using Products = WideProducts<T, Config>;
  using Base::args, Base::smem, Base::barriers, Base::w, Base::warp, Base::lane;
  using Base::begin, Base::end, Base::start, Base::items, Base::b, Base::q_begin, Base::k_begin;
  using Base::kv_head, Base::tile, Base::group, Base::first_unit;
  using Base::next_begin, Base::next_end;
  using Base::tile_full_begin, Base::tile_full_end;

  static constexpr int kBoth = 1;                  // named barrier of all threads of the block
  static constexpr int kUnitBits = (1 << 20) - 1;  // an item is head << 20 | unit

  const int map = Base::uniform(static_cast<int>(ptx::cluster_rank()));

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
    const int n = static_cast<int>(ptx::opaque(tile)) * C::kBlockN + 16 * warp;
    const uint32_t buffer = smem + C::kQAt + (4 * w + warp) * 4096;  // the stages of q are free
    this->store_rows(args.dv, dv, n + 64 * map, C::kValueDim / 2 * w, 1.0f, buffer, 2048);
    this->store_rows(map == 0 ? args.dk1 : args.dk2, dk, n + 64 * w, 0,
                     map == 0 ? args.scale : args.scale2, buffer, 2048);
    __syncwarp();
    ptx::cluster_sync();  // no block ends while the other may still access its shared memory
  }

  __device__ void start_barriers() const {
    if (threadIdx.x == 0) {
      ptx::barrier_init(barriers + C::kKvFull, 1);
      for (uint32_t stage = 0; stage < C::kQStages; ++stage) {
        ptx::barrier_init(barriers + C::kQFull + 8 * stage, 1);
      }
      for (uint32_t stage = 0; stage < C::kStages; ++stage) {
        ptx::barrier_init(barriers + C::kDoFull + 8 * stage, 1);
        ptx::barrier_init(barriers + C::kDoEmpty + 8 * stage, C::kWarps);
      }
      ptx::barrier_init(barriers + C::kPFull, 1);
      ptx::barrier_init(barriers + C::kGradFull, 1);
      ptx::barrier_init(barriers + C::kExchangeEmpty, 1);
      ptx::barrier_init_fence();
      ptx::barrier_arrive_expect(barriers + C::kPFull, C::kExchangeBytes);
      ptx::barrier_arrive_expect(barriers + C::kGradFull, C::kExchangeBytes);
    }
    BackwardProducts<T, C>::store_picks(smem, static_cast<int>(threadIdx.x));
    ptx::fence_async_proxy();
    __syncthreads();      // mbarriers, picks and the word at kKeyRangeAt are written
    ptx::cluster_sync();  // and also in the other block
  }

  // --- Loads. Lane 0 of these warps of warpgroup 1 issues them: warp 0 q, 1 dO, 2 k and v

  __device__ void load_keys() const {
    const uint32_t full = barriers + C::kKvFull;
    const int at = k_begin + tile * C::kBlockN, batch = args.tiles.cu_seqlens == nullptr ? b : 0;
    ptx::barrier_arrive_expect(full, C::kKBytes + C::kVBytes);
    ptx::load_box(smem + C::kKAt, map == 0 ? args.k1 : args.k2, full, 0, kv_head, at, 0, batch);
    ptx::load_box(smem + C::kVAt, args.v, full, 0, kv_head, at + 64 * map, 0, batch);
  }

  __device__ void load_q(uint32_t stage, int item) const {
    const int h = item >> 20, unit = item & kUnitBits;
    const uint32_t full = barriers + C::kQFull + 8 * stage;
    const int head = kv_head * group + h, at = q_begin + unit * C::kBlockM;
    const int64_t number = static_cast<int64_t>(head) * args.unit_count + first_unit + unit;
    ptx::barrier_arrive_expect(full, C::kQBytes + kStatBytes);
    ptx::load_box(smem + C::kQAt + stage * C::kQBytes, map == 0 ? args.q1 : args.q2, full, 0, head,
                  at, 0, args.tiles.cu_seqlens == nullptr ? b : 0);
    ptx::load_bytes(smem + C::kStatAt + stage * kStatBytes, args.stats + number * kStatBytes,
                    kStatBytes, full);
  }

  __device__ void load_d_o(uint32_t stage, int item) const {
    const int h = item >> 20, unit = item & kUnitBits;
    const uint32_t full = barriers + C::kDoFull + 8 * stage;
    ptx::barrier_arrive_expect(full, C::kDoBytes);
    const uint32_t to = smem + C::kDoAt + stage * C::kDoBytes;
    const int head = kv_head * group + h, at = q_begin + unit * C::kBlockM;
    const int batch = args.tiles.cu_seqlens == nullptr ? b : 0;
    ptx::load_box(to, args.d_o, full, 0, head, at, 0, batch);
  }

  __device__ void start_loads() const {
    if (w == 0 || lane != 0) return;
    if (warp == 2) load_keys();
    if (warp >= 2) return;
    ptx::store_smem_int(smem + C::kLoadAt + 4 * warp, start);
    for (int it = 0; it < min(items, warp == 0 ? C::kQStages : C::kStages); ++it) {
      if (warp == 0) {
        load_q(it, next_load());
      } else {
        load_d_o(it, next_load());
      }
    }
  }

  /// Returns the next item that this loader thread has to load, and stores the one after it. The
  /// item is in shared memory, because a variable would take a register of every thread.
  __device__ int next_load() const {
    const uint32_t at = smem + C::kLoadAt + 4 * warp;
    const int item = ptx::load_smem_int(at);
    int next = item;
    step(next);
    ptx::store_smem_int(at, next);
    return item;
  }

  /// Advances to the next item of the tile.
  __device__ void step(int& item) const {
    if ((++item & kUnitBits) == end) item += begin - end;
    if ((item & kUnitBits) == start) item += 1 << 20;
  }

  /// Releases dO of item `it`. All warps call it. When all have arrived, warp 1 of warpgroup 1
  /// loads dO of item it + 2 into the stage.
  __device__ void free_d_o(int it) const {
    const uint32_t stage = it & 1, empty = barriers + C::kDoEmpty + 8 * stage;
    if (lane == 0) ptx::barrier_arrive(empty);
    if (w == 1 && warp == 1 && lane == 0 && it + C::kStages < items) {
      ptx::barrier_wait(empty, (it >> 1) & 1);
      load_d_o(stage, next_load());
    }
  }

  /// Loads q and statistics of item it + 3 into the stage of item `it`. All warps call it after
  /// `publish_ds`, whose barrier ensures that every warp has finished with the stage.
  __device__ void refill_q(int it, uint32_t stage) const {
    if (w == 1 && warp == 0 && lane == 0 && it + C::kQStages < items) load_q(stage, next_load());
  }

  // --- The loop

  /// Computes (1), (2), (3), (x) and (5) of the first item, and (1) of the second.
  __device__ void begin_units(float (&s)[32], uint32_t (&ds)[16], uint32_t (&difference)[16]) {
    ptx::barrier_wait(barriers + C::kKvFull, 0);
    ptx::barrier_wait(barriers + C::kQFull, 0);
    ptx::barrier_wait(barriers + C::kDoFull, 0);
    float dp[16];
    ptx::discard(s);
    ptx::discard(dp);
    ptx::wgmma_fence();
    Products::issue_s(s, base_16(), map, w, 0);
    Products::issue_dp(dp, base_16(), w, 0, 0);
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    ptx::pin(dp);
    probabilities(s, ds, start, true);
    send_p(ds, 0);
    if (items > 1) ptx::barrier_wait(barriers + C::kQFull + 8, 0);
    ptx::discard(s);
    ptx::wgmma_fence();
    Products::issue_s(s, base_16(), map, w, 1);
    exchange(ds, difference, dp, 0, 0, start, true);
    store_ds(ds_lane(), ds);
    ptx::fence_async_proxy();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    publish_ds();
  }

  /// Runs the loop over items.
  __device__ void accumulate() {
    start_loads();
    float s[32];
    uint32_t ds[16], difference[16];
    begin_units(s, ds, difference);
    int item = start;  // head << 20 | unit
    for (int it = 0; it < items; ++it) {
      const uint32_t stage = it & 1, other = stage ^ 1;
      // Stages of q and statistics of this item, the next one and the one after it.
      const uint32_t round = it / 3u, stage0 = it - 3 * round;
      const uint32_t stage1 = stage0 == 2 ? 0 : stage0 + 1, stage2 = stage0 == 0 ? 2 : stage0 - 1;
      const uint32_t parity2 = (stage0 == 0 ? round : round + 1) & 1;
      const uint32_t base = ptx::opaque(base_16());
      const bool more = it + 1 < items;
      float dp[16], dq[32];
      uint32_t p[16];

      // The last iterations compute on stale data for items past the end and ignore the results.
      ptx::discard(dq);
      ptx::pin(difference);
      ptx::pin(dv);
      ptx::wgmma_fence();
      Products::issue_dq(dq, base, w);                                                   // (7)
      Products::issue_sum(dv, difference, Products::d_o_at(base, stage) + dv_blocks());  // (4)
      ptx::wgmma_wait<1>();
      ptx::pin(dq);
      reduce_dq(dq, item >> 20, item & kUnitBits);
      step(item);
      if (more) ptx::barrier_wait(barriers + C::kDoFull + 8 * other, ((it + 1) >> 1) & 1);
      ptx::discard(dp);
      ptx::pin(ds);
      ptx::pin(dk);
      ptx::wgmma_fence();
      Products::issue_dp(dp, base, w, other, stage1);             // (3) of the next item
      Products::issue_sum(dk, ds, Products::q_at(base, stage0));  // (6)
      probabilities(s, p, item & kUnitBits, more);
      send_p(p, it + 1);
      if (it + 2 < items) ptx::barrier_wait(barriers + C::kQFull + 8 * stage2, parity2);
      ptx::discard(s);
      ptx::wgmma_fence();
      Products::issue_s(s, base, map, w, stage2);  // (1) of the item after the next
      ptx::wgmma_wait<2>();                        // dv and dp are complete
      ptx::pin(dp);
      ptx::pin(difference);
      free_d_o(it);
      exchange(p, difference, dp, it + 1, stage1, item & kUnitBits, more);
      store_ds(ds_lane(), p);
      ptx::fence_async_proxy();
      ptx::wgmma_wait<0>();
      ptx::pin(s);
      ptx::pin(dv);
      ptx::pin(dk);
      ptx::pin(ds);
#pragma unroll
      for (int i = 0; i < 16; ++i) ds[i] = p[i];
      publish_ds();
      refill_q(it, stage0);
    }
  }

  /// Returns the address of shared memory in units of 16 bytes, without the cluster rank in its top
  /// byte.
  __device__ uint32_t base_16() const { return (smem & 0x3ffff) >> 4; }
  /// Returns the offset in dO, in units of 16 bytes, of the columns of this warpgroup's dv.
  __device__ uint32_t dv_blocks() const { return C::kValueBlocks / 2 * w * Products::kBlock; }

  /// Computes (2). `exists`: false for an item past the end.
  __device__ void probabilities(float (&s)[32], uint32_t (&p)[16], int unit, bool exists) const {
    if (exists && (unit < tile_full_begin || unit >= tile_full_end)) this->mask(s, unit);
    exp_pack<T>(s, p, map == 0 ? args.scale_log2 : args.scale2_log2);
  }

  /// Computes (x), except for `send_p`, and (5). Takes p of this map and dp of half of the queries.
  /// Replaces p by ds and sets `difference` to p1 - sign(lambda) p2' for the block's keys of dv.
  /// In all four warpgroups of the cluster, threads with equal threadIdx.x % 128 hold the same
  /// positions of their tiles. So each thread exchanges data only with its three counterparts.
  __device__ void exchange(uint32_t (&p)[16], uint32_t (&difference)[16], const float (&dp)[16],
                           int it, uint32_t stat_stage, int unit, bool exists) const {
    if (exists && (unit < tile_full_begin || unit >= tile_full_end)) this->flag_non_finite(dp);
    const uint32_t thread = ptx::opaque(threadIdx.x % 128 * 16);
    const uint32_t stats = smem + C::kStatAt + stat_stage * kStatBytes;
    const float sign = __int_as_float(ptx::load_smem_int(stats + kStatSignAt));
    uint32_t own[8];
    send_grads(own, dp, sign, stats + kStatDiffAt + lane % 4 * 16 + w * 128, thread);
    ptx::named_barrier_sync(kBoth, C::kThreads);
    wait_received(C::kPFull, it);
    compute_difference(difference, pack<T>(sign, sign), thread);
    wait_received(C::kGradFull, it);
    if (w == map) {
      uint32_t grad[8];
      load_words(grad, smem + C::kOwnGradAt + thread);
      if (w == 0) {
        multiply_half<0>(p, own);
        multiply_half<8>(p, grad);
      } else {
        multiply_half<0>(p, grad);
        multiply_half<8>(p, own);
      }
    } else {
      uint32_t grad[16];
      load_words(grad, smem + C::kOtherGradAt + thread);
#pragma unroll
      for (int i = 0; i < 16; ++i) p[i] = multiply<T>(p[i], grad[i]);
    }
  }

  /// Waits for the data of the other block and arms the mbarrier for the next item.
  __device__ void wait_received(uint32_t barrier, int it) const {
    ptx::barrier_wait(barriers + barrier, it & 1);
    if (threadIdx.x == 0) ptx::barrier_arrive_expect(barriers + barrier, C::kExchangeBytes);
  }

  /// Computes the factors of p in (5), for both maps. Sends the other map's factor to the other
  /// block. Returns this map's factor in `own`. If the other warpgroup computes ds of these keys
  /// (w != map), also stores the factor at kOwnGradAt for it. `diff_at`: address of
  /// sign * (delta1 - delta2) for the queries of dp.
  __device__ void send_grads(uint32_t (&own)[8], const float (&dp)[16], float sign,
                             uint32_t diff_at, uint32_t thread) const {
    const uint32_t full = ptx::remote_address(barriers + C::kGradFull, map ^ 1);
    const uint32_t remote = ptx::remote_address(smem + thread, map ^ 1);
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const float4 diff = ptx::load_smem_float4(diff_at + t * 64);
      uint32_t others[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = dp[8 * t + 2 * i], high = dp[8 * t + 2 * i + 1];
        const uint32_t grad1 = pack<T>(low, high);
        const uint32_t grad2 = pack<T>(fmaf(low, sign, i < 2 ? diff.x : diff.z),
                                       fmaf(high, sign, i < 2 ? diff.y : diff.w));
        own[4 * t + i] = map == 0 ? grad1 : grad2;
        others[i] = map == 0 ? grad2 : grad1;
      }
      send(remote + C::kOtherGradAt + (2 * w + t) * 2048, full, others);
      if (w != map) {
        ptx::store_smem_uint4(smem + C::kOwnGradAt + thread + t * 2048,
                              {own[4 * t], own[4 * t + 1], own[4 * t + 2], own[4 * t + 3]});
      }
    }
  }

  /// Computes p1 - sign(lambda) p2' from the two maps' p in shared memory.
  __device__ void compute_difference(uint32_t (&difference)[16], uint32_t signs,
                                     uint32_t thread) const {
    const uint32_t p1_at = ptx::opaque(smem + thread) + (map == 0 ? C::kOwnPAt : C::kOtherPAt);
    const uint32_t p2_at = ptx::opaque(smem + thread) + (map == 0 ? C::kOtherPAt : C::kOwnPAt);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int4 p1 = ptx::load_smem_int4(p1_at + i * 2048);
      const int4 p2 = ptx::load_smem_int4(p2_at + i * 2048);
      difference[4 * i] = multiply_add<T>(p2.x, signs, p1.x);
      difference[4 * i + 1] = multiply_add<T>(p2.y, signs, p1.y);
      difference[4 * i + 2] = multiply_add<T>(p2.z, signs, p1.z);
      difference[4 * i + 3] = multiply_add<T>(p2.w, signs, p1.w);
    }
  }

  /// Stores p in the block that computes dv of these keys: this block (w == map) or the other one.
  __device__ void send_p(const uint32_t (&p)[16], int it) const {
    const uint32_t thread = ptx::opaque(threadIdx.x % 128 * 16);
    ptx::barrier_wait(barriers + C::kExchangeEmpty, (it & 1) ^ 1);
    if (w == map) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ptx::store_smem_uint4(smem + C::kOwnPAt + thread + i * 2048,
                              {p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]});
      }
    } else {
      const uint32_t full = ptx::remote_address(barriers + C::kPFull, map ^ 1);
      const uint32_t remote = ptx::remote_address(smem + C::kOtherPAt + thread, map ^ 1);
#pragma unroll
      for (int i = 0; i < 4; ++i) send(remote + i * 2048, full, &p[4 * i]);
    }
  }

  __device__ static void send(uint32_t remote, uint32_t barrier, const uint32_t* x) {
    ptx::store_remote(remote, barrier,
                      make_float4(__uint_as_float(x[0]), __uint_as_float(x[1]),
                                  __uint_as_float(x[2]), __uint_as_float(x[3])));
  }

  template <int kFrom>
  __device__ static void multiply_half(uint32_t (&p)[16], const uint32_t (&grad)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) p[kFrom + i] = multiply<T>(p[kFrom + i], grad[i]);
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

  __device__ uint32_t ds_lane() const {
    const uint32_t thread = ptx::opaque(threadIdx.x);
    return smem + C::kDsAt + (thread / 32 * 16 + thread % 16) * 128 +
           ((thread / 16 % 2 ^ thread % 8) << 4);
  }

  /// Waits until all threads have stored ds. By then they have also read the data of the other
  /// block, so thread 0 arrives at that block's kExchangeEmpty.
  __device__ void publish_ds() const {
    ptx::named_barrier_sync(kBoth, C::kThreads);
    if (threadIdx.x == 0) {
      ptx::barrier_arrive_remote(ptx::remote_address(barriers + C::kExchangeEmpty, map ^ 1));
    }
  }

  /// Adds this warp's 16 rows of dq to the sums in global memory, in fragment order.
  /// kDeterministic: first waits until the next key tile (tile + 1) has added to the unit.
  __device__ void reduce_dq(const float (&dq)[32], int head, int unit) const {
    const int number = (kv_head * group + head) * args.unit_count + first_unit + unit;
    float* const sum = args.dq_sums + ((static_cast<int64_t>(number) * 2 + map) * 4 + warp) * 2048 +
                       w * 1024 + lane * 4;
    if constexpr (kDeterministic) {
      const int first = ptx::load_smem_int(smem + C::kNextAt);
      if (unit >= first && unit < ptx::load_smem_int(smem + C::kNextAt + 4)) {
        while (ptx::load_acquire(this->dq_done(number, map)) != tile + 2) {
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      ptx::reduce_add_float4(sum + i * 128, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    }
    if constexpr (kDeterministic) {
      __threadfence();
      __syncwarp();
      if (lane == 0) ptx::store_release(this->dq_done(number, map), tile + 1);
    }
  }
};

template <class T, class Config, bool kDeterministic>
__global__ void __cluster_dims__(Config::kCluster, 1, 1) __launch_bounds__(Config::kThreads, 1)
    backward_wide_kernel(const __grid_constant__ BackwardArguments<T> args) {
  extern __shared__ __align__(1024) char aligned_smem[];
  const uint32_t address = ptx::smem_address(aligned_smem);
  if (address % 1024 != 0) __trap();
  WideBackward<T, Config, kDeterministic>{{args, address}}.run();
}

}  // namespace diffattn::cuda::sm90
