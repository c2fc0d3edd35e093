// SPDX-License-Identifier: Apache-2.0
//
// Forward for Hopper. A block per multiprocessor takes items of 128 query rows of one head. Three
// warpgroups of 128 threads:
//   0     producer: one thread takes items (schedule.cuh), one issues every load
//   1, 2  consumers: 64 query rows each, both maps, so that a tile of v is loaded once and
//         O1 - lambda O2 is local
//
// A consumer, over the key tiles j that any of its rows may see; the softmax of a line runs while
// the line's second product, and the other consumer's, are on the tensor cores:
//   (1) s1(0) = q1 k1^T                                   (2) p1 = softmax step of s1(0)
//   (3) s2(j) = q2 k2^T and o1 += p1 v(j)                 (4) p2 = softmax step of s2(j)
//   (5) s1(j + 1) = q1 k1^T and o2 += p2 v(j)             (6) p1 = softmax step of s1(j + 1)
//   (7) lse, O = o1 / l1 - lambda o2 / l2, epilogue, stores: finish.cuh
// Scores, sums and O in float; p is rounded to T and never leaves registers.
//
// Tiles where some row does not see some column are masked, in loops of their own: in a common loop
// the comparisons would spill. K and V tiles are numbered through over all items: stage and phase
// of the ring follow from the number.
#pragma once

#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/forward/finish.cuh"
#include "kernels/cuda/sm90/forward/schedule.cuh"

namespace diffattn::cuda::sm90 {

/// Runs in one thread.
template <class T, class Config>
struct Loader {
  static constexpr int kStages = Config::kStages, kQBuffers = Config::kQBuffers;

  const ForwardArguments<T>& args;
  const uint32_t smem;

  __device__ __forceinline__ void run() {
    unsigned tile = 0;
    for (int count = 0;; ++count) {
      const uint32_t item = smem + Config::kItems + count % 2 * kItemBytes;
      ptx::barrier_wait_idle(smem + Config::kItemFull + 8 * (count % 2), count / 2 & 1);
      const int4 place = ptx::load_smem_int4(item);       // row, head, batch, seq_q
      const int4 begin = ptx::load_smem_int4(item + 16);  // q_begin, k_begin, first_tile, tiles
      const int kv_head = ptx::load_smem_int(item + 44);
      const int batch = args.packed ? 0 : place.z;
#pragma unroll 1
      for (int consumer = 0; consumer < 2; ++consumer) {
        load_q(count, consumer, place, begin.x, batch);
      }
      if (place.x < 0) return;
      const int row = begin.y + begin.z * Config::kBlockN;
#pragma unroll 1
      for (int j = 0; j < begin.w; ++j, ++tile) {
        load_keys(tile, row + j * Config::kBlockN, kv_head, batch);
      }
    }
  }

  __device__ __forceinline__ void load_q(int count, int consumer, int4 place, int q_begin,
                                         int batch) {
    const int slot = 2 * (count % kQBuffers) + consumer;
    const uint32_t full = smem + Config::kQFull + 8 * slot;
    const uint32_t q_smem = smem + Config::kQ + slot * Config::kQBytes;
    ptx::barrier_wait_idle(smem + Config::kQEmpty + 8 * slot, (count / kQBuffers & 1) ^ 1);
    if (place.x < 0) return ptx::barrier_arrive(full);
    ptx::barrier_arrive_expect(full, Config::kQBytes);
    const int row = q_begin + place.x + consumer * kConsumerRows;
    ptx::load_box(q_smem, args.q1, full, 0, place.y, row, 0, batch);
    ptx::load_box(q_smem + Config::kQMap, args.q2, full, 0, place.y, row, 0, batch);
  }

  __device__ __forceinline__ void load_keys(unsigned tile, int row, int kv_head, int batch) {
    const unsigned stage = tile % kStages, parity = (tile / kStages & 1) ^ 1;
    const uint32_t k_full = smem + Config::kKFull + 8 * stage;
    const uint32_t k_smem = smem + Config::kK + stage * 2 * Config::kKMap;
    ptx::barrier_wait_idle(smem + Config::kKEmpty + 8 * stage, parity);
    ptx::barrier_arrive_expect(k_full, args.shared_k ? Config::kKMap : 2 * Config::kKMap);
    ptx::load_box(k_smem, args.k1, k_full, 0, kv_head, row, 0, batch);
    if (!args.shared_k) {
      ptx::load_box(k_smem + Config::kKMap, args.k2, k_full, 0, kv_head, row, 0, batch);
    }
    const uint32_t v_full = smem + Config::kVFull + 8 * stage;
    ptx::barrier_wait_idle(smem + Config::kVEmpty + 8 * stage, parity);
    ptx::barrier_arrive_expect(v_full, Config::kVBytes);
    ptx::load_box(smem + Config::kV + stage * Config::kVBytes, args.v, v_full, 0, kv_head, row, 0,
                  batch);
  }
};

/// kLower: rows may not see all columns from 0 on (window, key_starts).
template <class T, class Config, bool kLower>
struct Consumer {
  static constexpr int kD = Config::kHeadDim, kDv = Config::kValueDim, kN = Config::kBlockN;
  static constexpr int kStages = Config::kStages, kQBuffers = Config::kQBuffers;

  const ForwardArguments<T>& args;
  char* const memory;   // shared memory
  const uint32_t smem;  // the same
  const int consumer;
  const int lane = threadIdx.x % 32;

  float o1[kDv / 2], o2[kDv / 2], s[kN / 2];
  uint32_t p[kN / 4];
  RowState state1, state2;
  int count = 0;        // items done
  int pipe = 0;         // tile j, from the first that a row sees, is number pipe + j of the ring
  uint32_t q_smem = 0;  // this item's [map][64, kD]

  __device__ __forceinline__ void run() {
    for (;; ++count) {
      ptx::barrier_wait(smem + Config::kQFull + 8 * slot(), count / kQBuffers & 1);
      if (uniform(ptx::load_smem_int(item())) < 0) break;
      const KeyRange range = KeyRange::of<kN>(sequence(), first_row());
      pipe = uniform(pipe);
      q_smem = uniform(smem + Config::kQ + slot() * Config::kQBytes);
      if constexpr (kLower) skip(uniform(range.begin - first_tile()));
      float lambda[2];
      attend({0, uniform(range.clear_begin - range.begin), uniform(range.clear_end - range.begin),
              uniform(range.end - range.begin)},
             lambda);
      skip(uniform(first_tile() + tiles() - range.end));
      char* const stages = memory + Config::kOut + warp() * Config::kOutStages * Config::kStageWarp;
      finish_rows<T, kDv, Config::kOutStages>(
          args, rows(), stages, reinterpret_cast<const float*>(memory + Config::kGains), count, o1,
          o2, state1, state2, lambda);
      if (lane == 0) ptx::barrier_arrive(smem + Config::kItemEmpty + 8 * (count % 2));
      __syncwarp();
    }
    if (lane == 0) ptx::wait_stores_read();  // shared memory outlives the last stores
  }

  /// (1) to (6), and lambda of this thread's rows. `range` is relative to its begin.
  __device__ __forceinline__ void attend(const KeyRange& range, float (&lambda)[2]) {
    for (int i = 0; i < kDv / 2; ++i) o1[i] = o2[i] = 0.0f;
    state1.reset();
    state2.reset();
    int j = 0;
    wait_k(j);
    issue_scores<0>(j);  // (1)
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    if (!kLower && range.clear_end > 0) {
      softmax_step<0, false>(j, true);  // (2)
    } else {
      softmax_step<0, true>(j, false);
    }
    round_rows<T>(p, s);
    if constexpr (kLower) {
#pragma unroll 1
      for (; j < min(range.clear_begin, range.end - 1); ++j) step<true>(j, false);
    }
#pragma unroll 1
    for (; j < range.clear_end - 1; ++j) step<false>(j, !kLower && j == 0);
#pragma unroll 1
    for (; j < range.end - 1; ++j) step<true>(j, false);
    first_half<true>(j, false);
    if (lane == 0) ptx::barrier_arrive(smem + Config::kQEmpty + 8 * slot());
    issue_output<1>(j);
    load_lambda(lambda);
    ptx::wgmma_wait<0>();
    ptx::pin(o2);
    release(Config::kVEmpty, j);
    pipe += j + 1;
  }

  template <bool kMasked>
  __device__ __forceinline__ void step(int j, bool fresh) {
    first_half<kMasked>(j, fresh);
    second_half<kMasked>(j);
  }

  template <bool kMasked>
  __device__ __forceinline__ void first_half(int j, bool fresh) {
    wait_v(j);
    issue_scores<1>(j);  // (3)
    issue_output<0>(j);
    ptx::wgmma_wait<1>();
    ptx::pin(s);
    release(Config::kKEmpty, j);
    softmax_step<1, kMasked>(j, fresh);  // (4)
    ptx::wgmma_wait<0>();
    ptx::pin(o1);
    round_rows<T>(p, s);
  }

  template <bool kMasked>
  __device__ __forceinline__ void second_half(int j) {
    wait_k(j + 1);
    issue_scores<0>(j + 1);  // (5)
    issue_output<1>(j);
    ptx::wgmma_wait<1>();
    ptx::pin(s);
    softmax_step<0, kMasked>(j + 1, false);  // (6)
    ptx::wgmma_wait<0>();
    ptx::pin(o2);
    release(Config::kVEmpty, j);
    round_rows<T>(p, s);
  }

  template <int kMap>
  __device__ __forceinline__ void issue_scores(int j) {
    const uint32_t base = smem + ptx::opaque_zero();
    const uint32_t k_map = kMap == 0 || args.shared_k ? 0 : Config::kKMap;
    const uint64_t q = ptx::smem_descriptor(q_smem + ptx::opaque_zero() + kMap * Config::kQMap);
    const uint64_t k =
        ptx::smem_descriptor(base + Config::kK + stage(j) * 2 * Config::kKMap + k_map);
    using ptx::Major;
    ptx::pin(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kD / 16; ++i) {
      const uint64_t q_i = q + 2 * (i % 4) + i / 4 * (kConsumerRows * kSwizzledRow / 16);
      const uint64_t k_i = k + 2 * (i % 4) + i / 4 * (kN * kSwizzledRow / 16);
      if (i == 0) {
        ptx::Wgmma<T, kN>::template ss<false, Major::kK, Major::kK>(s, q_i, k_i);
      } else {
        ptx::Wgmma<T, kN>::template ss<true, Major::kK, Major::kK>(s, q_i, k_i);
      }
    }
    ptx::wgmma_commit();
  }

  template <int kMap>
  __device__ __forceinline__ void issue_output(int j) {
    float(&o)[kDv / 2] = output<kMap>();
    const uint64_t v = ptx::smem_descriptor(
        smem + ptx::opaque_zero() + Config::kV + stage(j) * Config::kVBytes, kN * kSwizzledRow);
    ptx::pin(o);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kN / 16; ++i) {
      ptx::Wgmma<T, kDv>::template rs<true, ptx::Major::kMn>(o, p + 4 * i, v + 128 * i);
    }
    ptx::wgmma_commit();
  }

  /// Scores of tile j to P, not yet rounded. `fresh`: the first tile, which every row sees whole.
  template <int kMap, bool kMasked>
  __device__ __forceinline__ void softmax_step(int j, bool fresh) {
    RowState& state = kMap == 0 ? state1 : state2;
    const float c = kMap == 0 ? args.scale_log2 : args.scale2_log2;
    if constexpr (kMasked) {
      mask(j);
      state.take_missing(s);
    } else {
      if (fresh) state.take_first(s);
    }
    float factor[2];
    if (state.template exponentiate<T, kMasked>(s, c, factor)) {
      multiply_rows(output<kMap>(), factor);
    }
  }

  /// One limit after the other, so that only one is in registers.
  __device__ __forceinline__ void mask(int j) {
    const int begin = kLower ? KeyRange::of<kN>(sequence(), first_row()).begin : 0;
    const int column = (begin + j) * kN + 2 * (lane % 4);
    hide_rows<false>(s, sequence().end_visible(row(0)) - column,
                     sequence().end_visible(row(1)) - column);
    if constexpr (kLower) {
      hide_rows<true>(s, sequence().first_visible(row(0)) - column,
                      sequence().first_visible(row(1)) - column);
    }
  }

  __device__ __forceinline__ void load_lambda(float (&lambda)[2]) const {
    const WarpRows warp_rows = rows();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int m = warp_rows.row_of(r);
      lambda[r] = m < warp_rows.seq_q
                      ? *args.lambda.at(warp_rows.batch, warp_rows.q_begin + m, warp_rows.head)
                      : 0.0f;
    }
  }

  /// The ring's next tiles, which only the other consumer needs.
  __device__ __forceinline__ void skip(int tiles) {
#pragma unroll 1
    for (int j = 0; j < tiles; ++j) {
      wait_k(j);
      release(Config::kKEmpty, j);
      wait_v(j);
      release(Config::kVEmpty, j);
    }
    pipe += max(0, tiles);
  }

  template <int kMap>
  __device__ __forceinline__ float (&output())[kDv / 2] {
    if constexpr (kMap == 0) {
      return o1;
    } else {
      return o2;
    }
  }

  __device__ __forceinline__ int slot() const { return 2 * (count % kQBuffers) + consumer; }
  __device__ __forceinline__ uint32_t item() const {
    return smem + Config::kItems + count % 2 * kItemBytes;
  }

  // What is known of the item is read where it is used, so that it does not stay in registers.
  __device__ __forceinline__ Sequence sequence() const {
    return sequence_of(args, ptx::load_smem_int4(item()), ptx::load_smem_int4(item() + 32));
  }
  __device__ __forceinline__ int first_tile() const { return ptx::load_smem_int(item() + 24); }
  __device__ __forceinline__ int tiles() const { return ptx::load_smem_int(item() + 28); }
  __device__ __forceinline__ int first_row() const {
    return ptx::load_smem_int(item()) + consumer * kConsumerRows;
  }
  __device__ __forceinline__ int row(int r) const {
    return ptx::load_smem_int(item()) + 16 * warp() + lane / 4 + 8 * r;
  }
  __device__ __forceinline__ int warp() const { return 4 * consumer + threadIdx.x / 32 % 4; }
  __device__ __forceinline__ WarpRows rows() const {
    const int4 place = ptx::load_smem_int4(item());
    return {place.x + 16 * warp(), place.w, ptx::load_smem_int(item() + 16), place.z, place.y};
  }

  __device__ __forceinline__ unsigned stage(int j) const {
    return static_cast<unsigned>(pipe + j) % kStages;
  }
  __device__ __forceinline__ unsigned parity(int j) const {
    return static_cast<unsigned>(pipe + j) / kStages & 1;
  }
  __device__ __forceinline__ void wait_k(int j) const {
    ptx::barrier_wait(smem + Config::kKFull + 8 * stage(j), parity(j));
  }
  __device__ __forceinline__ void wait_v(int j) const {
    ptx::barrier_wait(smem + Config::kVFull + 8 * stage(j), parity(j));
  }
  __device__ __forceinline__ void release(int barriers, int j) const {
    if (lane == 0) ptx::barrier_arrive(smem + barriers + 8 * stage(j));
  }
};

template <class T, class Config>
__device__ inline void prepare_smem(const ForwardArguments<T>& args, char* memory) {
  const uint32_t smem = ptx::smem_address(memory);
  if (threadIdx.x == 0) {
    ptx::launch_dependents();
    for (int i = 0; i < Config::kStages; ++i) {
      ptx::barrier_init(smem + Config::kKFull + 8 * i, 1);
      ptx::barrier_init(smem + Config::kVFull + 8 * i, 1);
      ptx::barrier_init(smem + Config::kKEmpty + 8 * i, 8);
      ptx::barrier_init(smem + Config::kVEmpty + 8 * i, 8);
    }
    for (int i = 0; i < 2 * Config::kQBuffers; ++i) {
      ptx::barrier_init(smem + Config::kQFull + 8 * i, 1);
      ptx::barrier_init(smem + Config::kQEmpty + 8 * i, 4);
    }
    for (int i = 0; i < 2; ++i) {
      ptx::barrier_init(smem + Config::kItemFull + 8 * i, 1);
      ptx::barrier_init(smem + Config::kItemEmpty + 8 * i, 8);
    }
    ptx::barrier_init_fence();
  }
  float* const gains = reinterpret_cast<float*>(memory + Config::kGains);
  for (int c = threadIdx.x; c < Config::kValueDim; c += Config::kThreads) {
    gains[c] = args.epilogue.weight == nullptr ? 1.0f : args.epilogue.weight[c];
  }
  __syncthreads();
}

template <class T, class Config, bool kLower>
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
    Consumer<T, Config, kLower>{args, memory, smem, warpgroup - 1}.run();
  }
}

}  // namespace diffattn::cuda::sm90
