// SPDX-License-Identifier: Apache-2.0
//
// The second forward of an activation-checkpointed layer, whose lse1 and lse2 are known from the
// first. The probabilities are final as soon as the scores are, so the kernel subtracts the maps
// before the product with v: 4 D + 2 Dv instead of 4 D + 4 Dv FLOP per (query, key) pair, and one
// accumulator O instead of two.
//
//   (1) s1 = q1 k1^T, s2 = q2 k2^T
//   (2) p = exp(scale s1 - lse1) - sign(lambda) exp(scale2 s2 - (lse2 - log |lambda|))
//   (3) o += p v
//   (4) epilogue, stores
//
// Shapes, work items, warp roles, loads and the K/V pipeline are those of kernel.cuh; Dv <= 128, no
// mask tensor. The outputs are out and o with its rests, but not o2. The tensor cores run (1) of
// tile j + 1 and (3) of tile j together. The two consumers take turns at (2).
#pragma once

#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/forward/consumer.cuh"
#include "kernels/cuda/sm90/forward/finish.cuh"
#include "kernels/cuda/sm90/forward/loader.cuh"

namespace diffattn::cuda::sm90 {

template <class T, class Config, bool kLower>
struct RecomputeConsumer : ConsumerItem<T, Config, kLower> {
  using Base = ConsumerItem<T, Config, kLower>;
  using Products = ForwardProducts<T, Config>;
  using Base::args, Base::smem, Base::consumer, Base::lane;
  using Base::range, Base::count, Base::pipe, Base::q_smem;
  static constexpr int kDv = Config::kValueDim, kN = Config::kBlockN;

  float o[kDv / 2], s1[kN / 2], s2[kN / 2];
  uint32_t p[kN / 4];
  // For this thread's rows: lse1 and lse2 - log |lambda|, both times log2(e), and -sign(lambda).
  float offset1[2], offset2[2], sign[2];

  __device__ __forceinline__ void run() {
    if (consumer == 1) turn_pass();
    for (; this->open(); ++count) {
      attend();
      // Take as many turns as the other consumer, whose rows may see one tile more.
#pragma unroll 1
      for (int j = range.end; j < uniform(this->tiles()); ++j) {
        turn_wait();
        turn_pass();
      }
      finish_known_rows<T, kDv, Config::kOutStages>(args, this->rows(count), this->stages(),
                                                    this->gains(), count, o, offset1);
      this->release_item(count);
    }
    if (consumer == 0) turn_wait();
    if (lane == 0) ptx::wait_stores_read();  // TMA must read shared memory before the block ends
  }

  /// The consumers take turns at (2), which saturates the special function units: meanwhile the
  /// other consumer should run its products, not its exponentials.
  __device__ __forceinline__ void turn_wait() const {
    ptx::named_barrier_sync(1 + consumer, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void turn_pass() const {
    ptx::named_barrier_arrive(1 + (consumer ^ 1), 2 * kWarpgroup);
  }

  /// Steps (1) to (3) over all tiles of the item.
  __device__ __forceinline__ void attend() {
    for (float& x : o) x = 0.0f;
    this->wait_k(0);
    issue_scores(0);
    load_rows();
    subtract<true, 0>(0);
    round_rows<T>(p, s1);
    int j = 0;
    if constexpr (kLower) {
#pragma unroll 1
      for (; j < min(range.full_begin, range.end) - 1; ++j) step<true>(j);
    }
#pragma unroll 1
    for (; j < range.full_end - 1; ++j) step<false>(j);
#pragma unroll 1
    for (; j < range.end - 1; ++j) step<true>(j);
    const int last = this->close(j);
    this->wait_v(last - pipe);
    Products::issue_output(o, p, smem, this->stage(last - pipe));
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    this->release(Config::kVEmpty, last - pipe);
  }

  template <bool kMasked>
  __device__ __forceinline__ void step(int j) {
    this->wait_k(j + 1);
    this->wait_v(j);
    issue_scores(j + 1);                                 // (1)
    Products::issue_output(o, p, smem, this->stage(j));  // (3)
    subtract<kMasked, 1>(j + 1);                         // (2)
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    this->release(Config::kVEmpty, j);
    round_rows<T>(p, s1);
  }

  __device__ __forceinline__ void issue_scores(int j) {
    Products::template issue_scores<0>(s1, smem, q_smem, args.shared_k, this->stage(j));
    Products::template issue_scores<1>(s2, smem, q_smem, args.shared_k, this->stage(j));
  }

  /// Step (2): turns the scores of tile j into p, in s1. kBehind: wgmma groups that were issued
  /// after the scores.
  template <bool kMasked, int kBehind>
  __device__ __forceinline__ void subtract(int j) {
    const auto limits = kMasked ? this->limits(j) : RowLimits<kLower>{};
    ptx::wgmma_wait<kBehind + 1>();
    ptx::pin(s1);
    turn_wait();
    if constexpr (kMasked) this->template mask<0>(s1, j, limits);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      s1[i] = ptx::exp2(fmaf(s1[i], args.scale_log2, -offset1[i / 2 % 2]));
    }
    ptx::wgmma_wait<kBehind>();
    ptx::pin(s2);
    this->release(Config::kKEmpty, j);
    if constexpr (kMasked) this->template mask<1>(s2, j, limits);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      const float p2 = ptx::exp2(fmaf(s2[i], args.scale2_log2, -offset2[i / 2 % 2]));
      s1[i] = fmaf(p2, sign[i / 2 % 2], s1[i]);
    }
    turn_pass();
  }

  /// Loads lse1, lse2 and lambda. Rows that see no key or do not exist get infinite offsets, which
  /// make their probabilities 0.
  __device__ __forceinline__ void load_rows() {
    const WarpRows rows = this->rows(count);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int m = rows.row_of(r), l = rows.q_begin + m;
      float lse1 = -INFINITY, lse2 = -INFINITY, lambda = 0.0f;
      if (m < rows.seq_q) {
        lse1 = *args.lse1.at(rows.batch, l, rows.head);
        lse2 = *args.lse2.at(rows.batch, l, rows.head);
        lambda = *args.lambda.at(rows.batch, l, rows.head);
      }
      const bool dead = lse1 == -INFINITY;
      offset1[r] = dead ? INFINITY : lse1 * kLog2E;
      offset2[r] = dead || lambda == 0.0f ? INFINITY : fmaf(lse2, kLog2E, -log2f(fabsf(lambda)));
      sign[r] = lambda < 0.0f ? 1.0f : -1.0f;
    }
  }
};

template <class T, class Config, bool kLower>
__global__ void __launch_bounds__(Config::kThreads, 1)
    recompute_kernel(const __grid_constant__ ForwardArguments<T> args) {
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
    RecomputeConsumer<T, Config, kLower>{{args, smem, warpgroup - 1}}.run();
  }
}

}  // namespace diffattn::cuda::sm90
