// SPDX-License-Identifier: Apache-2.0
//
// Differential attention forward for Hopper, D = 128, Dv = 256. Equation, shapes, precision,
// masking and the K/V pipeline are those of ../kernel.cuh. A cluster of two blocks processes work
// items of 128 query rows of one head: block 0 computes map 1, block 1 map 2. Each block loads its
// own k, and half of v for both blocks (multicast). The three warpgroups of a block:
//   0     producer: thread 0 issues all TMA loads; in block 0, thread 32 runs the scheduler, which
//         sends each work item to block 1
//   1, 2  consumers: 64 query rows each, all 256 columns of v
//
// Steps of a consumer, over the key tiles j that any of its rows sees. During the softmax step on
// the right, the tensor cores run the second product on its left and the products of the other
// consumer.
//   (1) s(0) = q k^T                                  (2) p = softmax step of s(0)
//   (3) s(j + 1) = q k^T and o += p v(j)              (4) p = softmax step of s(j + 1)
//   (5) lse; the blocks exchange halves of their columns; each block computes 128 columns of
//       O = o1 / l1 - lambda o2 / l2, the epilogue and the stores: finish.cuh
#pragma once

#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/forward/schedule.cuh"
#include "kernels/cuda/sm90/forward/wide/finish.cuh"

namespace diffattn::cuda::sm90 {

/// Loads q of each item for both consumers, then k and v tile by tile. Runs in one thread of each
/// block.
template <class T>
struct WideLoader {
  using Config = WideConfig;
  static constexpr int kStages = Config::kStages, kQBuffers = Config::kQBuffers;

  const ForwardArguments<T>& args;
  const uint32_t smem;
  const uint32_t rank;

  __device__ __forceinline__ void run() {
    unsigned tile = 0;  // pipeline number of the item's first tile
    for (int count = 0;; ++count) {
      const uint32_t item = smem + Config::kItems + count % 2 * kItemBytes;
      ptx::barrier_wait_idle(smem + Config::kItemFull + 8 * (count % 2), count / 2 & 1);
      const int4 coordinates = ptx::load_smem_int4(item);  // row, head, batch, seq_q
      const int4 begin = ptx::load_smem_int4(item + 16);   // q_begin, k_begin, first_column, tiles
      const int kv_head = ptx::load_smem_int(item + 44);
      const int batch = args.packed ? 0 : coordinates.z;
#pragma unroll 1
      for (int consumer = 0; consumer < 2; ++consumer) {
        load_q(count, consumer, coordinates, begin.x, batch);
      }
      if (coordinates.x < 0) return;
      const int row = begin.y + begin.z;
#pragma unroll 1
      for (int j = -1; j < begin.w; ++j) {  // consumers need k one tile earlier than v
        if (j + 1 == max(0, begin.w - kTakeTiles)) ptx::barrier_arrive(smem + Config::kTake);
        if (j + 1 < begin.w) load_k(tile + j + 1, row + (j + 1) * Config::kBlockN, kv_head, batch);
        if (j >= 0) load_v(tile + j, row + j * Config::kBlockN, kv_head, batch);
      }
      tile += begin.w;
    }
  }

  __device__ __forceinline__ void load_q(int count, int consumer, int4 coordinates, int q_begin,
                                         int batch) {
    const int slot = 2 * (count % kQBuffers) + consumer;
    const uint32_t full = smem + Config::kQFull + 8 * slot;
    ptx::barrier_wait_idle(smem + Config::kQEmpty + 8 * slot, (count / kQBuffers & 1) ^ 1);
    if (coordinates.x < 0) return ptx::barrier_arrive(full);
    ptx::barrier_arrive_expect(full, Config::kQBytes);
    ptx::load_box(smem + Config::kQ + slot * Config::kQBytes, rank == 0 ? args.q1 : args.q2, full,
                  0, coordinates.y, q_begin + coordinates.x + consumer * kConsumerRows, 0, batch);
  }

  __device__ __forceinline__ void load_k(unsigned tile, int row, int kv_head, int batch) {
    const unsigned stage = tile % kStages;
    const uint32_t full = smem + Config::kKFull + 8 * stage;
    ptx::barrier_wait_idle(smem + Config::kKEmpty + 8 * stage, (tile / kStages & 1) ^ 1);
    ptx::barrier_arrive_expect(full, Config::kKBytes);
    ptx::load_box(smem + Config::kK + stage * Config::kKBytes, rank == 0 ? args.k1 : args.k2, full,
                  0, kv_head, row, 0, batch);
  }

  /// Loads this block's half of v's columns into both blocks.
  __device__ __forceinline__ void load_v(unsigned tile, int row, int kv_head, int batch) {
    constexpr uint16_t kBoth = 3;
    const unsigned stage = tile % kStages;
    const uint32_t full = smem + Config::kVFull + 8 * stage;
    const uint32_t v_smem =
        smem + Config::kV + stage * Config::kVBytes + rank * (Config::kVBytes / 2);
    ptx::barrier_wait_idle(smem + Config::kVEmpty + 8 * stage, (tile / kStages & 1) ^ 1);
    ptx::barrier_arrive_expect(full, Config::kVBytes);
    ptx::load_box_multicast(v_smem, args.v, full, kBoth, 0, kv_head, row, 2 * rank, batch);
  }
};

/// Block 1's counterpart of the scheduler: arms kItemFull for each item that block 0 sends. Runs in
/// one thread.
__device__ inline void receive_items(uint32_t smem) {
  using Config = WideConfig;
  for (int count = 0;; ++count) {
    const int slot = count % 2;
    ptx::barrier_arrive_expect(smem + Config::kItemFull + 8 * slot, kItemBytes);
    ptx::barrier_wait_idle(smem + Config::kItemFull + 8 * slot, count / 2 & 1);
    if (ptx::load_smem_int(smem + Config::kItems + slot * kItemBytes) < 0) return;
  }
}

/// A consumer warpgroup, which computes the map of its block. kLower: see ConsumerItem.
template <class T, bool kLower>
struct WideConsumer {
  using Config = WideConfig;
  static constexpr int kD = Config::kHeadDim, kDv = Config::kValueDim, kN = Config::kBlockN;
  static constexpr int kStages = Config::kStages, kQBuffers = Config::kQBuffers;

  const ForwardArguments<T>& args;
  char* const memory;   // shared memory as a pointer
  const uint32_t smem;  // shared memory as an address for PTX
  const int consumer;
  const int lane = threadIdx.x % 32;

  float o[kDv / 2], s[kN / 2];
  uint32_t p[kN / 4];
  SoftmaxState state;
  int count = 0;        // number of the item, from 0
  int pipe = 0;         // pipeline number of tile 0, the first that this consumer sees
  int begin = 0;        // kLower: the first tile of the item that this consumer sees
  uint32_t q_smem = 0;  // this item's q, [64, kD]

  __device__ __forceinline__ void run() {
    for (;; ++count) {
      ptx::barrier_wait(smem + Config::kQFull + 8 * slot(), count / kQBuffers & 1);
      if (uniform(ptx::load_smem_int(item())) < 0) break;
      const KeyRange range = KeyRange::of<kN>(sequence(), first_row(), origin());
      pipe = uniform(pipe);
      q_smem = uniform(smem + Config::kQ + slot() * Config::kQBytes);
      if constexpr (kLower) {
        begin = uniform(range.begin);
        skip(begin);
      }
      float lambda[2];
      attend({0, uniform(range.full_begin - range.begin), uniform(range.full_end - range.begin),
              uniform(range.end - range.begin), uniform(range.last_columns)},
             lambda);
      skip(uniform(tiles() - range.end));
      WideFinish<T>{args, rows(), memory, smem, slot(), consumer, count}.run(o, state, lambda);
      if (lane == 0) {
        ptx::barrier_arrive_remote(
            ptx::remote_address(smem + Config::kItemEmpty + 8 * (count % 2), 0));
      }
      __syncwarp();
    }
    if (lane == 0) ptx::wait_stores_read();  // TMA must read shared memory before the block ends
    __syncwarp();
  }

  /// Computes (1) to (4) and loads lambda of this thread's rows. The tiles of `range` count from
  /// the first one that this consumer sees.
  __device__ __forceinline__ void attend(const KeyRange& range, float (&lambda)[2]) {
    for (int i = 0; i < kDv / 2; ++i) o[i] = 0.0f;
    state.reset();
    int j = 0;
    wait_k(j);
    issue_scores(j);  // (1)
    const RowLimits<kLower> first_limits = limits(j);
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    release_k(j);
    float factor[2];  // unused: O is still 0
    if (!kLower && range.full_end > 0) {
      softmax_step<false>(true, first_limits, factor);  // (2)
    } else {
      softmax_step<true>(false, first_limits, factor);
    }
    round_rows<T>(p, s);
    leave_last_item();
    if constexpr (kLower) {
#pragma unroll 1
      for (; j < min(range.full_begin, range.end) - 1; ++j) step<true>(j);
    }
#pragma unroll 1
    for (; j < range.full_end - 1; ++j) step<false>(j);
#pragma unroll 1
    for (; j < range.end - 1; ++j) step<true>(j);
    // This warp no longer reads q, and the buffer at kX is free: allow the other block to send its
    // columns.
    if (lane == 0) {
      ptx::barrier_arrive_remote(
          ptx::remote_address(smem + Config::kXReady + 8 * consumer, ptx::cluster_rank() ^ 1));
    }
    __syncwarp();
    wait_v(j);
    issue_last(j, range.last_columns);
    load_lambda(lambda);
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    release_v(j);
    pipe += j + 1;
  }

  /// Waits until TMA has read the previous item's output rows, then releases that item's q buffer,
  /// which held them.
  __device__ __forceinline__ void leave_last_item() {
    if (lane == 0 && count > 0) {
      ptx::wait_stores_read();
      ptx::barrier_arrive(smem + Config::kQEmpty + 8 * (slot() ^ 2));
    }
    __syncwarp();
  }

  /// Computes (3) and (4).
  template <bool kMasked>
  __device__ __forceinline__ void step(int j) {
    wait_v(j);
    wait_k(j + 1);
    issue_scores(j + 1);  // (3)
    issue_output(j);
    const auto next_limits = kMasked ? limits(j + 1) : RowLimits<kLower>{};
    ptx::wgmma_wait<1>();
    ptx::pin(s);
    release_k(j + 1);
    float factor[2];
    const bool rescaled = softmax_step<kMasked>(false, next_limits, factor);  // (4)
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    release_v(j);
    if (rescaled) multiply_rows(o, factor);
    round_rows<T>(p, s);
  }

  __device__ __forceinline__ void issue_scores(int j) {
    using ptx::Major;
    const uint64_t q = ptx::smem_descriptor(q_smem + ptx::opaque_zero());
    const uint64_t k =
        ptx::smem_descriptor(smem + ptx::opaque_zero() + Config::kK + stage(j) * Config::kKBytes);
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

  /// Adds p v over the first 16 kSteps keys of the tile. p is 0 for the other keys.
  template <int kSteps = kN / 16>
  __device__ __forceinline__ void issue_output(int j) {
    const uint64_t v = ptx::smem_descriptor(
        smem + ptx::opaque_zero() + Config::kV + stage(j) * Config::kVBytes, kN * kSwizzledRow);
    ptx::pin(o);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      ptx::Wgmma<T, kDv>::template rs<true, ptx::Major::kMn>(o, p + 4 * i, v + 128 * i);
    }
    ptx::wgmma_commit();
  }

  /// Issues the output product of the item's last tile, of which the rows see at most `columns`
  /// columns. Multiplies only the first 16 or 48 keys if no row sees more.
  __device__ __forceinline__ void issue_last(int j, int columns) {
    if (columns <= 16) {
      issue_output<1>(j);
    } else if (columns <= 48) {
      issue_output<3>(j);
    } else {
      issue_output(j);
    }
  }

  /// Turns the scores of a tile into P, not yet rounded. `first_full_tile`: true if it is the
  /// item's first tile and every row sees every column of it. Returns true if the caller must
  /// multiply O by `factor`.
  template <bool kMasked>
  __device__ __forceinline__ bool softmax_step(bool first_full_tile,
                                               const RowLimits<kLower>& limits,
                                               float (&factor)[2]) {
    const float c = ptx::cluster_rank() == 0 ? args.scale_log2 : args.scale2_log2;
    if constexpr (kMasked) {
      limits.mask_end(s);
      limits.mask_begin(s);
      state.init_missing_max(s);
    } else {
      if (first_full_tile) state.init_max(s);
    }
    return state.template exponentiate<T, kMasked>(s, c, factor);
  }

  __device__ __forceinline__ RowLimits<kLower> limits(int j) const {
    const int column = origin() + (begin + j) * kN + 2 * (lane % 4);
    return RowLimits<kLower>::of(sequence(), row(0), column);
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

  /// Skips the next `tiles` tiles of the pipeline, which only the other consumer reads: waits for
  /// each and releases it.
  __device__ __forceinline__ void skip(int tiles) {
#pragma unroll 1
    for (int j = 0; j < tiles; ++j) {
      wait_k(j);
      release_k(j);
      wait_v(j);
      release_v(j);
    }
    pipe += max(0, tiles);
  }

  __device__ __forceinline__ int slot() const { return 2 * (count % kQBuffers) + consumer; }
  __device__ __forceinline__ uint32_t item() const {
    return smem + Config::kItems + count % 2 * kItemBytes;
  }

  // These functions read the item from shared memory at each use, which saves registers.
  __device__ __forceinline__ Sequence sequence() const {
    return sequence_of(args, ptx::load_smem_int4(item()), ptx::load_smem_int4(item() + 32));
  }
  /// Returns the first column of the item's first tile.
  __device__ __forceinline__ int origin() const {
    return kLower ? ptx::load_smem_int(item() + 24) : 0;
  }
  __device__ __forceinline__ int tiles() const { return ptx::load_smem_int(item() + 28); }
  __device__ __forceinline__ int first_row() const {
    return ptx::load_smem_int(item()) + consumer * kConsumerRows;
  }
  __device__ __forceinline__ int row(int r) const {
    return ptx::load_smem_int(item()) + 16 * warp() + lane / 4 + 8 * r;
  }
  __device__ __forceinline__ int warp() const { return 4 * consumer + threadIdx.x / 32 % 4; }
  __device__ __forceinline__ WarpRows rows() const {
    const int4 coordinates = ptx::load_smem_int4(item());
    return {coordinates.x + 16 * warp(), coordinates.w, ptx::load_smem_int(item() + 16),
            coordinates.z, coordinates.y};
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
  __device__ __forceinline__ void release_k(int j) const {
    if (lane == 0) ptx::barrier_arrive(smem + Config::kKEmpty + 8 * stage(j));
  }
  /// Arrives in both blocks, because each block's loader writes half of v into both.
  __device__ __forceinline__ void release_v(int j) const {
    if (lane < 2) {
      ptx::barrier_arrive_remote(ptx::remote_address(smem + Config::kVEmpty + 8 * stage(j), lane));
    }
  }
};

/// Initialises the mbarriers and loads the head norm's weights. All threads call it.
template <class T>
__device__ inline void prepare_wide_smem(const ForwardArguments<T>& args, char* memory) {
  using Config = WideConfig;
  const uint32_t smem = ptx::smem_address(memory);
  if (threadIdx.x == 0) {
    ptx::launch_dependents();
    for (int i = 0; i < Config::kStages; ++i) {
      ptx::barrier_init(smem + Config::kKFull + 8 * i, 1);
      ptx::barrier_init(smem + Config::kVFull + 8 * i, 1);
      ptx::barrier_init(smem + Config::kKEmpty + 8 * i, 8);
      ptx::barrier_init(smem + Config::kVEmpty + 8 * i, 16);
    }
    for (int i = 0; i < 2 * Config::kQBuffers; ++i) {
      ptx::barrier_init(smem + Config::kQFull + 8 * i, 1);
      ptx::barrier_init(smem + Config::kQEmpty + 8 * i, 4);
    }
    for (int i = 0; i < 2; ++i) {
      ptx::barrier_init(smem + Config::kItemFull + 8 * i, 1);
      ptx::barrier_init(smem + Config::kItemEmpty + 8 * i, 16);
      ptx::barrier_init(smem + Config::kXReady + 8 * i, 4);
    }
    for (int i = 0; i < 8; ++i) {
      ptx::barrier_init(smem + Config::kXFull + 8 * i, 1);
      ptx::barrier_init(smem + Config::kSquaresFull + 8 * i, 1);
    }
    ptx::barrier_init(smem + Config::kTake, 1);
    ptx::barrier_init_fence();
  }
  float* const gains = reinterpret_cast<float*>(memory + Config::kGains);
  for (int c = threadIdx.x; c < Config::kValueDim; c += Config::kThreads) {
    gains[c] = args.epilogue.weight == nullptr ? 1.0f : args.epilogue.weight[c];
  }
  __syncthreads();
  ptx::cluster_sync();  // both blocks' mbarriers are initialised before any remote access
}

template <class T, bool kLower>
__global__ void __cluster_dims__(WideConfig::kCluster, 1, 1)
    __launch_bounds__(WideConfig::kThreads, 1)
        wide_forward_kernel(const __grid_constant__ ForwardArguments<T> args) {
  using Config = WideConfig;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t smem = ptx::smem_address(memory);
  prepare_wide_smem(args, memory);
  const int warpgroup = uniform(threadIdx.x / kWarpgroup);
  if (warpgroup == 0) {
    ptx::shrink_registers<Config::kProducerRegisters>();
    const uint32_t rank = ptx::cluster_rank();
    if (threadIdx.x == 0) WideLoader<T>{args, smem, rank}.run();
    if (threadIdx.x == 32 && rank == 0) {
      Item* const items = reinterpret_cast<Item*>(memory + Config::kItems);
      Scheduler<T, Config>{args, items, smem}.run();
    }
    if (threadIdx.x == 32 && rank == 1) receive_items(smem);
    __syncwarp();
    ptx::cluster_sync();  // no block ends while the other may still access its shared memory
  } else {
    ptx::grow_registers<Config::kConsumerRegisters>();
    WideConsumer<T, kLower>{args, memory, smem, warpgroup - 1}.run();
    ptx::cluster_sync();
  }
}

}  // namespace diffattn::cuda::sm90
