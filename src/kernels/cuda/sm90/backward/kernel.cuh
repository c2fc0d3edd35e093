// SPDX-License-Identifier: Apache-2.0
//
// The main kernel of the backward for D = 64, Dv = 64 or 128. It does all work proportional to
// M N. It reads q1, q2, dO, k1, k2, v and the row statistics (stats.cuh). It writes dk1, dk2
// [B, N, Hkv, D], dv [B, N, Hkv, Dv] and float sums of dq1, dq2, which finish.cu scales and rounds.
//
// One block owns a tile of 128 keys of one (batch entry, kv head); each of its two warpgroups owns
// 64 of them. The block loops over items. An item is a unit (64 query rows of one head) with a row
// that sees any of these keys; the block visits all heads of the kv head. With
// lse2' = lse2 - log |lambda|:
//
//   (1) s1 = k1 q1^T - lse1 / scale, s2 = k2 q2^T - lse2' / scale2      [keys, queries]
//   (2) p1 = exp(scale s1), p2' = |lambda| p2 = exp(scale2 s2)          rounded to T
//   (3) dp = v dO^T - delta1
//   (4) dv += (p1 - sign(lambda) p2') dO
//   (5) ds1 = p1 dp, ds2 = -sign(lambda) p2' (dp + delta1 - delta2)     rounded to T
//   (6) dk1 += ds1 q1, dk2 += ds2 q2                                    ds from registers
//   (7) dq1 += ds1^T k1 by warpgroup 0, dq2 += ds2^T k2 by warpgroup 1  ds through shared memory
//   then (8) store dv, scale dk1, scale2 dk2
//
// Accumulators are float. Bulk reductions add dq to the sums in global memory in any order. If
// kDeterministic, they add from the last key tile to the first: a tile adds to a unit after the
// next key tile has done so.
//
// An iteration of a warpgroup issues these wgmma groups; the dots mark its own arithmetic:
//
//   s1 | s2 . dp . dv . dk1 . dk2  dq(previous unit)  s1(next unit) | ...
//
// It computes exp(s1) while s2 runs, exp(s2) while dp runs, and ds1, ds2 while dv and dk1 run. The
// warpgroups exchange ds through shared memory. dq lags one unit behind, so that they may run half
// an iteration apart. Two named barriers (`turn_wait`, `turn_pass`) keep them apart: while one
// warpgroup computes (2) to (5), the other only has products in flight. Warpgroup 1 runs second, so
// its lanes issue the TMA loads: by then the stages are free.
//
// Three rules keep ptxas from serialising the products (warnings C7512 and C7514):
//   - No product into an accumulator that the loop reads crosses the loop's back edge: each
//     iteration ends with a wait for s1.
//   - Waits come early to free a product's registers: see those before dq and s1.
//   - Values that are cheap to recompute do not stay in registers: descriptors (`opaque`), uniform
//     values.
#pragma once

#include "kernels/cuda/sm90/backward/fragments.cuh"
#include "kernels/cuda/sm90/backward/key_tile.cuh"

namespace diffattn::cuda::sm90 {

/// B: type of the biases of an additive mask; void without one.
template <class T, class Config, bool kDeterministic, class B>
struct Backward : KeyTile<T, Config, kDeterministic> {
  using Base = KeyTile<T, Config, kDeterministic>;
  using C = Config;
  using Products = BackwardProducts<T, Config>;
  using Base::args, Base::smem, Base::barriers, Base::w, Base::warp, Base::lane, Base::row;
  using Base::begin, Base::end, Base::start, Base::items;
  using Base::full_begin, Base::full_end, Base::next_begin, Base::next_end;
  using Base::kv_head, Base::tile, Base::group, Base::first_unit;

  static constexpr bool kBiased = !std::is_void_v<B>;

  float dv[C::kValueDim / 2], dk1[32], dk2[32];

  __device__ void run() {
    if (!this->find_tile()) return;
    start_barriers();
    for (float& x : dv) x = 0.0f;
    for (float& x : dk1) x = 0.0f;
    for (float& x : dk2) x = 0.0f;
    if (items > 0) accumulate();
    store();  // (8)
    if (items > 0 && lane == 0) ptx::wait_stores();
  }

  __device__ void start_barriers() const {
    if (threadIdx.x == 0) {
      ptx::barrier_init(barriers + C::kKvFull, 1);
      for (uint32_t stage = 0; stage < C::kStages; ++stage) {
        ptx::barrier_init(barriers + C::kFull + 8 * stage, 1);
        ptx::barrier_init(barriers + C::kEmpty + 8 * stage, C::kThreads);
        ptx::barrier_init(barriers + C::kDsFull + 8 * stage, C::kWarps);
        ptx::barrier_init(barriers + C::kDsEmpty + 8 * stage, C::kWarps);
      }
      ptx::barrier_init_fence();
    }
    Products::store_picks(smem, static_cast<int>(threadIdx.x));
    ptx::fence_async_proxy();
    __syncthreads();  // mbarriers, picks and the word at kKeyRangeAt are written
  }

  // --- dq

  /// Writes the warp's 16 rows of dq, in fragment order, into its own part of shared memory, from
  /// which `flush_dq` adds them to the sums. First waits until the previous reduction has read that
  /// memory. kDeterministic: waits until that reduction is complete, and reports it in dq_done.
  /// The caller must call fence_async_proxy and __syncwarp between stage_dq and flush_dq.
  __device__ void stage_dq(const float (&dq)[32], int& pending) const {
    if (lane == 0) {
      if constexpr (kDeterministic) {
        ptx::wait_stores();
        if (pending >= 0) {
          ptx::fence_async_proxy_global();
          ptx::store_release(this->dq_done(pending), tile + 1);
          pending = -1;
        }
      } else {
        ptx::wait_stores_read();
      }
    }
    __syncwarp();
    const uint32_t to = smem + C::kDqAt + (4 * w + warp) * C::kDqWarpBytes + lane * 16;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      ptx::store_smem_float4(to + i * 512, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    }
  }

  /// Issues the bulk reduction of the staged dq of item `it`. Lane 0 calls it. kDeterministic:
  /// first waits until the next key tile (tile + 1) has added to the unit.
  __device__ void flush_dq(int it, int& pending) const {
    const int item = ptx::load_smem_int(smem + C::kItemAt + 4 * (it & (C::kItems - 1)));
    const int unit = item & 0xfffff;
    const int number = (kv_head * group + (item >> 20)) * args.unit_count + first_unit + unit;
    if constexpr (kDeterministic) {
      if (unit >= next_begin && unit < next_end) {
        while (ptx::load_acquire(this->dq_done(number)) != tile + 2) {
        }
        ptx::fence_async_proxy_global();
      }
      pending = number;
    }
    float* const sum = args.dq_sums + ((static_cast<int64_t>(number) * 2 + w) * 4 + warp) * 1024;
    ptx::reduce_add_floats(sum, smem + C::kDqAt + (4 * w + warp) * C::kDqWarpBytes,
                           C::kDqWarpBytes);
    ptx::commit_stores();
  }

  // --- The loop

  __device__ void turn_wait() const { ptx::named_barrier_sync(2 + w, C::kThreads); }
  __device__ void turn_pass() const { ptx::named_barrier_arrive(2 + (w ^ 1), C::kThreads); }

  __device__ void wait(uint32_t barrier, uint32_t stage, uint32_t parity) const {
    ptx::barrier_wait(barriers + barrier + 8 * stage, parity & 1);
  }
  __device__ void arrive(uint32_t barrier, uint32_t stage) const {
    ptx::barrier_arrive(barriers + barrier + 8 * stage);
  }

  /// Starts the loads of k, v and the first two items. Advances `load_head` and `load_unit` to the
  /// third item.
  __device__ void load_first(bool loader, int& load_head, int& load_unit) const {
    if (loader) {
      this->load_item(0, 0, start);
      this->load_keys();
    }
    this->step(load_head, load_unit);
    if (loader && items > 1) this->load_item(1, load_head, load_unit);
    this->step(load_head, load_unit);
  }

  __device__ void compute_first_s1(float (&s1)[32]) const {
    wait(C::kKvFull, 0, 0);
    wait(C::kFull, 0, 0);
    ptx::discard(s1);
    ptx::wgmma_fence();
    Products::issue_s1(s1, smem >> 4, w, 0);
    ptx::wgmma_wait<0>();
    ptx::pin(s1);
  }

  /// Computes (2) for one map: masks s and exponentiates it. `partial`: true if a key of the
  /// warpgroup is hidden from a row of the unit, and always with a mask tensor.
  __device__ void to_probabilities(float (&s)[32], uint32_t (&p)[16], float c, bool partial,
                                   int unit, int it, BiasStream<B>& biases) const {
    if constexpr (kBiased) {
      if (partial) this->flag_non_finite(s);
      exp_pack<T>(s, p, c, biases);
    } else {
      if (partial) this->mask(s, unit, it);
      exp_pack<T>(s, p, c);
    }
  }

  /// Runs the loop over items: steps (1) to (7).
  __device__ void accumulate() {
    const bool loader = w == 1 && lane == 0;
    int load_head = 0, load_unit = start;
    load_first(loader, load_head, load_unit);
    if (w == 1) turn_pass();
    float s1[32];
    compute_first_s1(s1);

    const uint32_t ds_lane = smem + C::kDsAt + (64 * w + 16 * warp + lane % 16) * 128 +
                             (((lane >> 4) ^ (lane & 7)) << 4);
    int unit = start;
    int pending = -1;  // kDeterministic: the unit whose reduction is in flight
    for (int it = 0; it < items; ++it) {
      const uint32_t stage = it & 1, other = stage ^ 1, round = it >> 1;
      const uint32_t base = ptx::opaque(smem >> 4);
      float s2[32], dp[32], dq[32];
      uint32_t p1[16], p2[16], p[16];

      // (1), (2)
      ptx::discard(s2);
      ptx::wgmma_fence();
      Products::issue_s2(s2, base, w, stage);
      BiasStream<B> biases;
      if constexpr (kBiased) {
        biases.first = this->biases_of(unit, it);
        biases.start();
      }
      turn_wait();
      const bool partial = unit < full_begin || unit >= full_end;
      to_probabilities(s1, p1, args.scale_log2, partial, unit, it, biases);
      if constexpr (kBiased) biases.start();
      ptx::discard(dp);
      ptx::wgmma_fence();
      Products::issue_dp(dp, base, w, stage);  // (3)
      ptx::wgmma_wait<1>();
      ptx::pin(s2);
      to_probabilities(s2, p2, args.scale2_log2, partial, unit, it, biases);
      const float sign = Products::load_sign(smem, stage);
      const uint32_t signs = pack<T>(sign, sign);
#pragma unroll
      for (int i = 0; i < 16; ++i) p[i] = multiply_add<T>(p2[i], signs, p1[i]);
      ptx::pin(p);
      ptx::pin(dv);
      ptx::wgmma_fence();
      Products::issue_dv(dv, p, base, stage);  // (4)

      // (5), (6)
      float diff[16];
      Products::load_diff(diff, smem, stage, lane);
      ptx::wgmma_wait<1>();
      ptx::pin(dp);
      if (partial) this->flag_non_finite(dp);
      grad_scores<T>(p1, dp);
      ptx::pin(p1);
      ptx::pin(dk1);
      ptx::wgmma_fence();
      Products::issue_dk(dk1, p1, base, stage, 0);
      wait(C::kDsEmpty, stage, round ^ 1);
      const uint32_t ds = ds_lane + stage * 2 * C::kDsBytes;
      store_ds(ds, p1);
      grad_scores<T>(p2, dp, diff, sign);
      if (it + w < items) turn_pass();  // not to warpgroup 0 after its last item
      store_ds(ds + C::kDsBytes, p2);
      ptx::fence_async_proxy();
      __syncwarp();
      if (lane == 0) {
        arrive(C::kDsFull, stage);
        if (it >= 2) flush_dq(it - 2, pending);
      }
      ptx::pin(p2);
      ptx::pin(dk2);
      ptx::wgmma_fence();
      Products::issue_dk(dk2, p2, base, stage, 1);
      ptx::wgmma_wait<2>();  // dv is complete and frees the registers of p
      ptx::pin(p);

      // (7) of the previous item. The first iteration reads stale ds and ignores the result.
      if (it >= 1) wait(C::kDsFull, other, (it - 1) >> 1);
      ptx::discard(dq);
      ptx::wgmma_fence();
      Products::issue_dq(dq, base, w, other);
      ptx::wgmma_wait<1>();  // dk1 and dk2 are complete and free q, dO and the registers of ds
      ptx::pin(p1);
      ptx::pin(p2);
      arrive(C::kEmpty, stage);  // by every thread, since every thread reads statistics
      // (1) of the next item. The last iteration reads stale data and ignores the result.
      if (it + 1 < items) wait(C::kFull, other, (it + 1) >> 1);
      ptx::discard(s1);
      ptx::wgmma_fence();
      Products::issue_s1(s1, base, w, other);
      if (loader && it + 2 < items) {
        wait(C::kEmpty, stage, round);
        this->load_item(it + 2, load_head, load_unit);
      }
      this->step(load_head, load_unit);
      if (++unit == end) unit = begin;
      ptx::wgmma_wait<1>();
      ptx::pin(dq);
      if (it >= 1) {
        if (lane == 0) arrive(C::kDsEmpty, other);
        stage_dq(dq, pending);
      }
      ptx::wgmma_wait<0>();
      ptx::pin(s1);
    }
    finish_dq(pending);
  }

  /// Computes dq of the last item and issues the outstanding reductions.
  __device__ void finish_dq(int& pending) {
    const int last = items - 1;
    wait(C::kDsFull, last & 1, last >> 1);
    float dq[32];
    ptx::discard(dq);
    ptx::wgmma_fence();
    Products::issue_dq(dq, smem >> 4, w, last & 1);
    if (last >= 1) {
      ptx::fence_async_proxy();
      __syncwarp();
      if (lane == 0) flush_dq(last - 1, pending);
    }
    ptx::wgmma_wait<0>();
    ptx::pin(dq);
    ptx::pin(dv);
    ptx::pin(dk1);
    ptx::pin(dk2);
    stage_dq(dq, pending);
    ptx::fence_async_proxy();
    __syncwarp();
    if (lane != 0) return;
    flush_dq(last, pending);
    if constexpr (kDeterministic) {
      ptx::wait_stores();
      ptx::fence_async_proxy_global();
      ptx::store_release(this->dq_done(pending), tile + 1);
    }
  }

  /// Computes (8).
  __device__ void store() const {
    const int key = 64 * w + 16 * warp;
    const int n = tile * C::kBlockN + key;
    // The buffer is the warp's own rows of v, which its warpgroup no longer reads.
    const uint32_t buffer = smem + C::kVAt + key * 128;
    constexpr uint32_t kStep = C::kValueBlocks > 1 ? C::kVBlockBytes : 0;
    ptx::named_barrier_sync(4 + w, 128);
    this->store_rows(args.dv, dv, n, 0, 1.0f, buffer, kStep);
    this->store_rows(args.dk1, dk1, n, 0, args.scale, buffer, kStep);
    this->store_rows(args.dk2, dk2, n, 0, args.scale2, buffer, kStep);
  }
};

template <class T, class Config, bool kDeterministic, class B = void>
__global__ void __launch_bounds__(Config::kThreads, 1)
    backward_kernel(const __grid_constant__ BackwardArguments<T> args) {
  extern __shared__ __align__(1024) char aligned_smem[];
  const uint32_t address = ptx::smem_address(aligned_smem);
  if (address % 1024 != 0) __trap();
  Backward<T, Config, kDeterministic, B>{{args, address}}.run();
}

}  // namespace diffattn::cuda::sm90
