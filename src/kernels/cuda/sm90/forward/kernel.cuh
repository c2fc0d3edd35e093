// SPDX-License-Identifier: Apache-2.0
//
// Differential attention forward for Hopper; D = 64 with Dv = 64 or 128, and D = Dv = 128:
//
//   O = softmax(scale q1 k1^T) v - lambda softmax(scale2 q2 k2^T) v,   out = epilogue(O)
//
// q1, q2 [B, M, H, D]; k1, k2 [B, N, Hkv, D]; v [B, N, Hkv, Dv]; O, out [B, M, H, Dv].
//
// The grid has one persistent block per multiprocessor. A block processes work items of 128 query
// rows of one head. Its three warpgroups:
//   0     producer: thread 0 issues all TMA loads (loader.cuh), thread 32 runs the scheduler of
//         work items (schedule.cuh)
//   1, 2  consumers: 64 query rows each, both maps, so that one load of v serves both maps and
//         O1 - lambda O2 needs no exchange
//
// Steps of a consumer, over the key tiles j that any of its rows sees. During the softmax step on
// the right (softmax.cuh), the tensor cores run the second product on its left and the products of
// the other consumer.
//   (1) s1(0) = q1 k1^T                                   (2) p1 = softmax step of s1(0)
//   (3) s2(j) = q2 k2^T and o1 += p1 v(j)                 (4) p2 = softmax step of s2(j)
//   (5) s1(j + 1) = q1 k1^T and o2 += p2 v(j)             (6) p1 = softmax step of s1(j + 1)
//   (7) lse, O = o1 / l1 - lambda o2 / l2, epilogue, stores: finish.cuh
// Scores, sums and O are float. p is rounded to T and stays in registers. At an item's last tile,
// (5) and (6) compute s1 and p1 of the next item's first tile if q has two buffers; (7) follows.
//
// Tiles in which some row does not see some column run in loops of their own, because the mask
// would spill registers in a common loop. The pipeline number of a tile counts the tiles of all
// items of a block. It determines the pipeline stage and the mbarrier parity of K and V.
#pragma once

#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/forward/consumer.cuh"
#include "kernels/cuda/sm90/forward/finish.cuh"
#include "kernels/cuda/sm90/forward/loader.cuh"

namespace diffattn::cuda::sm90 {

/// A consumer warpgroup. kPlain: the outputs are out and lse only, without head norm.
template <class T, class Config, bool kLower, class MaskTile, bool kPlain>
struct Consumer : ConsumerItem<T, Config, kLower, MaskTile> {
  using Base = ConsumerItem<T, Config, kLower, MaskTile>;
  using Products = ForwardProducts<T, Config>;
  using Base::args, Base::smem, Base::lane, Base::range, Base::count, Base::pipe, Base::q_smem;
  using typename Base::Limits;
  static constexpr int kDv = Config::kValueDim, kN = Config::kBlockN;
  static constexpr bool kEarly = Config::kQBuffers > 1;  // loads the next item's q during this one
  static_assert(kEarly || !kPlain);
  // These assertions exclude deadlock with the loader. A consumer waits for the next item's q while
  // it holds k of its last tile, and skips the next item's leading tiles while it holds v of that
  // tile. If kN >= 64, the tile ranges of the two consumers differ by at most one tile at either
  // end. If kN > 64, neither consumer skips a leading tile.
  static_assert(!kEarly || kN >= kConsumerRows);
  static_assert(!(kEarly && kLower) || kN > kConsumerRows || Config::kStages > 2);
  // Late rescaling: a P whose sum exceeds kSumBound still enters its tile's products, and
  // `rescale_late` rescales between two tiles. float16 cannot hold such a P. Additive masks rescale
  // in `track_large_max`. Boolean masks have no registers left for it, and neither has kLower at
  // D = 128.
  static constexpr bool kLateRescale = __is_same(T, bfloat16) && !Base::kWords && !Base::kBiases &&
                                       !(kLower && Config::kHeadDim == 128);

  float o1[kDv / 2], o2[kDv / 2], s[kN / 2];
  uint32_t p[kN / 4];
  SoftmaxState state1, state2;
  bool rescale_pending = false;  // kLateRescale: a sum exceeds kSumBound
  KeyRange next;  // kEarly: tiles of the next item, found during this item's last tile
  bool has_next;  // kEarly: there is a next item

  __device__ __forceinline__ void run() {
    bool more = this->open();
    if (more) first_scores();
    while (more) {
      const int last = attend();
      if constexpr (kEarly) {
        more = finish_beside_next(last);
      } else {
        finish(last);
        more = this->open();
        if (more) first_scores();
      }
    }
    if (lane == 0) ptx::wait_stores_read();  // TMA must read shared memory before the block ends
  }

  /// Computes (1) and (2).
  __device__ __forceinline__ void first_scores() {
    this->wait_k(0);
    issue_scores<0>(0);
    this->load_first_biases();
    const Limits limits = this->limits(0);
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    first_softmax(state1, limits);
    round_rows<T>(p, s);
  }

  /// Turns s1 of an item's first tile into P1, not yet rounded, and initialises `state`.
  __device__ __forceinline__ void first_softmax(SoftmaxState& state, const Limits& limits) {
    state.reset();
    float factor[2];  // unused: O is still 0
    if (!kLower && range.full_end > 0) {
      state.init_max(s);
      state.template exponentiate<T, false>(s, args.scale_log2, factor);
    } else {
      this->template mask<0>(s, 0, limits);
      if constexpr (Base::kBiases) {
        float origin[2];
        state.template track_large_max<T>(s, args.scale_log2, factor, origin);
        state.template exponentiate<T, true>(s, args.scale_log2, factor, origin);
      } else {
        state.init_missing_max(s);
        state.template exponentiate<T, true>(s, args.scale_log2, factor);
      }
    }
  }

  /// Computes (3) to (6) over all tiles, except the last o2 += p2 v. Returns the pipeline number of
  /// the last tile.
  __device__ __forceinline__ int attend() {
    for (int i = 0; i < kDv / 2; ++i) o1[i] = o2[i] = 0.0f;
    state2.reset();
    if constexpr (kLateRescale) this->wait_v(0);
    int j = 0;
    if constexpr (kLower) {
#pragma unroll 1
      for (; j < min(range.full_begin, range.end - 1); ++j) step<true>(j, false);
    }
#pragma unroll 1
    for (; j < range.full_end - 1; ++j) step<false>(j, !kLower && j == 0);
#pragma unroll 1
    for (; j < range.end - 1; ++j) step<true>(j, false);
    first_half<true, true>(j, false);
    return this->close(j);
  }

  /// Issues the item's last o2 += p2 v together with the next item's first scores, computes the
  /// next item's P1, and finishes the item. Returns false if there is no next item.
  __device__ __forceinline__ bool finish_beside_next(int last) {
    ++count;
    float lambda[2];
    load_lambda(lambda, this->rows(count - 1));
    const int last_columns = range.last_columns;
    const bool more = has_next;
    if (more) {
      this->enter(next);
      this->wait_k(0);
    }
    issue_scores<0>(0);  // without a next item this reads stale data, and the result is unused
    issue_last<1>(last - pipe, last_columns);
    this->load_first_biases();
    const Limits limits = this->limits(0);
    PlainFinish<T, kDv, Config::kOutStages> plain{args, this->rows(count - 1)};
    if constexpr (kPlain) plain.prepare(state1, state2);
    ptx::wgmma_wait<1>();
    ptx::pin(s);
    SoftmaxState next1;
    first_softmax(next1, limits);
    ptx::wgmma_wait<0>();
    ptx::pin(o2);
    this->release(Config::kVEmpty, last - pipe);
    round_rows<T>(p, s);
    if constexpr (kPlain) {
      plain.send(this->stages(), count - 1, o1, o2, lambda);
      this->release_item(count - 1);
    } else {
      finish_item(lambda);
    }
    state1 = next1;
    return more;
  }

  /// Issues the item's last o2 += p2 v and finishes the item.
  __device__ __forceinline__ void finish(int last) {
    ++count;
    issue_last<1>(last - pipe, range.last_columns);
    float lambda[2];
    load_lambda(lambda, this->rows(count - 1));
    ptx::wgmma_wait<0>();
    ptx::pin(o2);
    this->release(Config::kVEmpty, last - pipe);
    finish_item(lambda);
  }

  /// Computes (7) for item count - 1.
  __device__ __forceinline__ void finish_item(const float (&lambda)[2]) {
    const WarpRows rows = this->rows(count - 1);
    finish_rows<T, kDv, Config::kOutStages>(args, rows, this->stages(), this->gains(), count - 1,
                                            o1, o2, state1, state2, lambda);
    this->release_item(count - 1);
  }

  /// Computes (3) to (6) for tile j. `first_full_tile`: see `softmax_step`.
  template <bool kMasked>
  __device__ __forceinline__ void step(int j, bool first_full_tile) {
    first_half<kMasked>(j, first_full_tile);
    second_half<kMasked>(j);
    if (kLateRescale && rescale_pending) rescale_late();
  }

  /// Computes (3) and (4). kLast: tile j is the item's last one.
  template <bool kMasked, bool kLast = false>
  __device__ __forceinline__ void first_half(int j, bool first_full_tile) {
    if constexpr (!kLateRescale) this->wait_v(j);
    issue_scores<1>(j);  // (3)
    if constexpr (kLast) {
      issue_last<0>(j, range.last_columns);
    } else {
      issue_output<0>(j);
    }
    const auto limits = kMasked ? this->limits(j) : Limits{};
    if constexpr (kLast && kEarly) has_next = this->find(count + 1, next);
    ptx::wgmma_wait<1>();
    ptx::pin(s);
    this->release(Config::kKEmpty, j);
    softmax_step<1, kMasked>(j, first_full_tile, limits, kLast ? kNoBarrier : Config::kKFull,
                             j + 1);  // (4)
    if constexpr (!kLast) this->load_next_biases();
    ptx::wgmma_wait<0>();
    ptx::pin(o1);
    round_rows<T>(p, s);
  }

  /// Computes (5) and (6).
  template <bool kMasked>
  __device__ __forceinline__ void second_half(int j) {
    if constexpr (!kLateRescale) this->wait_k(j + 1);
    issue_scores<0>(j + 1);  // (5)
    issue_output<1>(j);
    const auto limits = kMasked ? this->limits(j + 1) : Limits{};
    ptx::wgmma_wait<1>();
    ptx::pin(s);
    softmax_step<0, kMasked>(j + 1, false, limits, Config::kVFull, j + 1);  // (6)
    ptx::wgmma_wait<0>();
    ptx::pin(o2);
    this->release(Config::kVEmpty, j);
    round_rows<T>(p, s);
  }

  template <int kMap>
  __device__ __forceinline__ void issue_scores(int j) {
    Products::template issue_scores<kMap>(s, smem, q_smem, args.shared_k, this->stage(j));
  }
  template <int kMap>
  __device__ __forceinline__ void issue_output(int j) {
    Products::issue_output(output<kMap>(), p, smem, this->stage(j));
  }
  /// Issues the output product of an item's last tile, of which the rows see at most `columns`
  /// columns. Multiplies only the first 16 kThird or 32 kThird keys if no row sees more.
  template <int kMap>
  __device__ __forceinline__ void issue_last(int j, int columns) {
    constexpr int kThird = kN / 48;  // at most a third of the tile, in steps of 16 keys
    if (columns <= 16 * kThird) {
      Products::template issue_output<kThird>(output<kMap>(), p, smem, this->stage(j));
    } else if (columns <= 32 * kThird) {
      Products::template issue_output<2 * kThird>(output<kMap>(), p, smem, this->stage(j));
    } else {
      issue_output<kMap>(j);
    }
  }

  static constexpr int kNoBarrier = -1;

  /// Turns the scores of tile j into P, not yet rounded. `first_full_tile`: true if j is the item's
  /// first tile and every row sees every column of it.
  ///
  /// kLateRescale: also waits for tile `next_tile` of the mbarriers `next_barriers`, which the next
  /// products read. It tests that mbarrier before the exponentials and branches after them, once
  /// for both rare cases: a tile that has not arrived, and a large sum. The next products cannot
  /// start before these instructions end, so every further branch or wait would delay them.
  template <int kMap, bool kMasked>
  __device__ __forceinline__ void softmax_step(int j, bool first_full_tile, const Limits& limits,
                                               int next_barriers, int next_tile) {
    SoftmaxState& state = kMap == 0 ? state1 : state2;
    const float c = kMap == 0 ? args.scale_log2 : args.scale2_log2;
    float factor[2];
    if constexpr (kMasked && Base::kBiases) {
      if (biased_step<kMap>(state, c, factor)) multiply_rows(output<kMap>(), factor);
      return;
    }
    if constexpr (kMasked) {
      this->template mask<kMap>(s, j, limits);
      state.init_missing_max(s);
    } else {
      if (first_full_tile) state.init_max(s);
    }
    if constexpr (kLateRescale) {
      const bool loaded = next_barriers == kNoBarrier || this->is_loaded(next_barriers, next_tile);
      float tile_sum[2];
      SoftmaxState::exponentials<kMasked>(s, c, state.approx_max, tile_sum);
      state.sum[0] += tile_sum[0];
      state.sum[1] += tile_sum[1];
      const bool large = state.template has_large_sum<T>();
      if (__any_sync(0xffffffffu, large || !loaded)) {
        rescale_pending = rescale_pending || __any_sync(0xffffffffu, large);
        if (next_barriers != kNoBarrier) this->wait(next_barriers, next_tile);
      }
    } else if (state.template exponentiate<T, kMasked>(s, c, factor)) {
      multiply_rows(output<kMap>(), factor);
    }
  }

  /// Raises the approximate maximum of rows with large sums, and rescales their o1, o2 and P1 of
  /// the next tile. Tests every row's own sum, because `rescale_pending` may stem from the previous
  /// item.
  __device__ __forceinline__ void rescale_late() {
    rescale_pending = false;
    float factor[2];
    state2.template rescale_large_sums<T>(args.scale2_log2, factor);
    multiply_rows(o2, factor);
    state1.template rescale_large_sums<T>(args.scale_log2, factor);
    multiply_rows(o1, factor);
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
      const float2 pair = unpack<T>(p[i]);
      p[i] = pack<T>(pair.x * factor[i % 2], pair.y * factor[i % 2]);
    }
  }

  /// Does `softmax_step` under an additive mask. Returns true if the caller must multiply the map's
  /// output by `factor`.
  template <int kMap>
  __device__ __forceinline__ bool biased_step(SoftmaxState& state, float c, float (&factor)[2]) {
    if constexpr (Base::kBase2) {
      if (state.is_max_zero()) {
        const float scale = kMap == 0 ? args.scale : args.scale2;
        return state.template exponentiate_biased<T>(s, this->biases, scale, factor);
      }
    }
    this->template mask<kMap>(s, 0, {});
    float origin[2];
    if (state.template track_large_max<T>(s, c, factor, origin)) {
      multiply_rows(output<kMap>(), factor);
    }
    return state.template exponentiate<T, true>(s, c, factor, origin);
  }

  __device__ __forceinline__ void load_lambda(float (&lambda)[2], const WarpRows& rows) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int m = rows.row_of(r);
      lambda[r] = m < rows.seq_q ? *args.lambda.at(rows.batch, rows.q_begin + m, rows.head) : 0.0f;
    }
  }

  template <int kMap>
  __device__ __forceinline__ float (&output())[kDv / 2] {
    if constexpr (kMap == 0) {
      return o1;
    } else {
      return o2;
    }
  }
};

template <class T, class Config, bool kLower, class MaskTile = NoMaskTile, bool kPlain = false>
__global__ void __launch_bounds__(Config::kThreads, 1)
    forward_kernel(const __grid_constant__ ForwardArguments<T> args) {
  extern __shared__ __align__(1024) char memory[];
  const uint32_t smem = ptx::smem_address(memory);
  prepare_smem<T, Config>(args, memory);
  const int warpgroup = uniform(threadIdx.x / kWarpgroup);
  if (warpgroup == 0) {
    ptx::shrink_registers<Config::kProducerRegisters>();
    if (threadIdx.x == 0) Loader<T, Config>{args, smem}.run();
    if (threadIdx.x == 32) {
      Item* const items = reinterpret_cast<Item*>(memory + Config::kItems);
      Scheduler<T, Config>{args, items, smem}.run();
    }
  } else {
    ptx::grow_registers<Config::kConsumerRegisters>();
    Consumer<T, Config, kLower, MaskTile, kPlain>{{args, smem, warpgroup - 1}}.run();
  }
}

}  // namespace diffattn::cuda::sm90
