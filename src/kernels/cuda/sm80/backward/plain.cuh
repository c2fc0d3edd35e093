// SPDX-License-Identifier: Apache-2.0
//
// Fused sm80 backward for plain problems: no mask tensor, and rows of exactly the tile's width that
// are aligned for 16-byte loads and stores. It needs a GPU with 193 KiB of shared memory per block
// (Hopper). It computes steps (1) to (8) of fused.cuh with 256 threads, kBlockM = 64 queries and
// kBlockN = 128 keys. Shared-memory reads and the instructions between products limit the speed:
//
//   * A warp computes 32 queries x 32 keys in (2) to (5), 32 queries x half of one map's columns of
//     dq in (6), and 64 keys x kD columns of [dv, dk1, dk2] in (7).
//   * dO is split into two column halves, so that q1, q2 and dO form four equal tiles [64, kD].
//   * 128 accumulators and three score tiles of 32 registers leave no registers for addresses.
//     Pointers and counters live in per-thread slots of shared memory, and each step recomputes its
//     addresses.
//   * The atomic additions to dq come last in a step, because loads from shared memory would queue
//     behind them.
//   * Blocks are persistent: they take key tiles from a counter, the longest first, and store one
//     tile's gradients while the next tile loads.
#pragma once

#include <type_traits>

#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/sm80/backward/arguments.cuh"
#include "kernels/cuda/sm80/backward/config.h"
#include "kernels/cuda/sm80/backward/dq_sums.cuh"
#include "kernels/cuda/sm80/backward/products.cuh"
#include "kernels/cuda/sm80/backward/scores.cuh"
#include "kernels/cuda/sm80/tile_order.cuh"
#include "kernels/cuda/sm80/visible_words.cuh"

namespace diffattn::cuda::sm80 {

/// A work item: one tile of keys and the query rows that see any of them.
struct WorkItem {
  Sequence seq;
  int b, kv_head, n0;        // n0: first key
  int h, end_head;           // heads [h, end_head) of the group; empty if no row sees the keys
  int begin, end;            // rows that see any of the keys; begin is a multiple of kBlockM
  int full_begin, full_end;  // rows that see all of the keys
  bool exists;               // false after the last work item

  template <class Config>
  __device__ void set(const Shape& shape, int64_t number, int tiles, int group) {
    exists = number < int64_t{tiles} * shape.batch * shape.kv_heads;
    if (!exists) return;
    const WorkTile work =
        grouped_work_tile(static_cast<int>(number), shape.batch, shape.kv_heads, tiles, group);
    seq = shape.sequence(work.b);
    b = work.b, kv_head = work.h, n0 = work.tile * Config::kBlockN;
    const int end_n = n0 + Config::kBlockN, heads = shape.heads / shape.kv_heads;
    const int first_key = max(n0, seq.first_key), end_key = min(end_n, seq.end_key);
    begin = end = 0;
    if (first_key < end_key) {
      begin = seq.first_row(first_key) / Config::kBlockM * Config::kBlockM;
      end = seq.end_row(end_key - 1);
    }
    const bool unpadded = seq.first_key <= n0 && end_n <= seq.end_key;
    full_begin = !unpadded ? kFarAway : seq.bounded ? end_n - 1 - seq.diagonal : 0;
    full_end = n0 - seq.diagonal + seq.window;
    h = kv_head * heads;
    end_head = begin < end ? h + heads : h;
  }
};

template <class T, class Config>
struct BackwardPlain {
  static constexpr int kD = Config::kHeadDim, kValue = Config::kValueDim;
  static constexpr int kBlockM = Config::kBlockM, kBlockN = Config::kBlockN;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kChunks = kD / kChunk, kAtOnce = kThreads / kChunks;  // rows copied at once
  static constexpr int kFragments = kBlockN / 32;  // (7): 16-key fragments in a warp's 64 keys
  static constexpr int kDqCols = kD / 2;
  static_assert(kBlockM == 64 && kBlockN == 128 && kThreads == 256);
  static_assert(kAtOnce % 8 == 0 && kBlockM % kAtOnce == 0);

  const BackwardArguments<T>& args;
  const DqSums& sums;
  WorkItem* const items;  // [2]: the current work item and the next one, alternating
  const uint32_t smem;    // shared-memory address

  // Offsets and sizes in bytes. kStatsAt counts from the start of a stage, the others from `smem`.
  static constexpr int kKBytes = 2 * kBlockN * kD, kVAt = 2 * kKBytes;
  static constexpr int kStagesAt = kVAt + 2 * kBlockN * kValue;
  static constexpr int kQBytes = 2 * kBlockM * kD, kStatsAt = 4 * kQBytes;
  static constexpr int kExchangeAt = kStagesAt + 2 * Config::kStageBytes;
  static constexpr int kExchangeBytes = 2 * kBlockM * kBlockN;  // each of ds1, ds2 and a
  static constexpr int kSlotsAt = kExchangeAt + 3 * kExchangeBytes;
  static_assert(kSlotsAt + 8 * Config::kThreadSlots * kThreads == Config::kSmemBytes);

  Accumulator<kFragments, kD / 8> sums_reg;  // [64 keys, kD] of dv, dk1 or dk2

  /// Indices of the warp's parts of a step's products. Each use reads threadIdx.x again, so that
  /// the compiler keeps no derived values in registers.
  struct Part {
    const unsigned thread = ptx::reread_thread();
    const int lane = static_cast<int>(thread % kWarpSize);
    const int rows = static_cast<int>(thread / kWarpSize % 2);    // (2)-(6): which 32 queries
    const int keys = static_cast<int>(thread / (2 * kWarpSize));  // (2)-(5): which 32 keys
    const int block = static_cast<int>(thread / kWarpSize % 4);   // (7): dv, dv, dk1 or dk2
    const int half = static_cast<int>(thread / (4 * kWarpSize));  // (7): which 64 keys
  };

  /// Per-thread slots of 8 bytes in shared memory. kQ1, kQ2, kDO, kStats: source of the next
  /// stage's copies. kDq: target of the next sums of dq. kPosition: current (head, row). kStep:
  /// (step number, flag), where the flag is nonzero if k1 or k2 holds an infinity or NaN.
  enum Slot : int { kQ1, kQ2, kDO, kStats, kDq, kPosition, kStep };
  static_assert(kStep + 1 == Config::kThreadSlots);
  template <class U>
  __device__ U* load_slot(Slot which) const {
    return reinterpret_cast<U*>(ptx::load_8(slot_address(which)));
  }
  template <class U>
  __device__ void store_slot(Slot which, U* to) const {
    ptx::store_8(slot_address(which), reinterpret_cast<uint64_t>(to));
  }
  __device__ int2 load_pair(Slot which) const {
    const uint64_t x = ptx::load_8(slot_address(which));
    return {static_cast<int>(x), static_cast<int>(x >> 32)};
  }
  __device__ void store_pair(Slot which, int x, int y) const {
    ptx::store_8(slot_address(which),
                 static_cast<uint64_t>(static_cast<uint32_t>(y)) << 32 | static_cast<uint32_t>(x));
  }
  __device__ uint32_t slot_address(Slot which) const {
    return smem + kSlotsAt + (which * kThreads + ptx::reread_thread()) * 8;
  }

  __device__ T* tile(uint32_t at) const { return static_cast<T*>(__cvta_shared_to_generic(at)); }
  __device__ uint32_t stage(int step) const {
    return smem + kStagesAt + step % 2 * Config::kStageBytes;
  }

  __device__ void run(int tiles, int group) {
    const auto take = [&](int which, int64_t number) {
      if (threadIdx.x == 0) items[which].template set<Config>(args.shape, number, tiles, group);
    };
    const auto take_next = [&](int which) {
      if (threadIdx.x == 0) take(which, int64_t{gridDim.x} + atomicAdd(sums.next_tile, 1));
    };
    take(0, blockIdx.x);
    __syncthreads();  // thread 0 has set the first work item
    if (!items[0].exists) return;
    start(items[0]);
    for (int which = 0;; which ^= 1) {
      const WorkItem& item = items[which];
      clear();
      const bool empty = item.h >= item.end_head;
      if (empty) {
        __syncthreads();  // all warps have stored the previous item; take_next overwrites its slot
        take_next(which ^ 1);
      } else {
        accumulate(item, [&] { take_next(which ^ 1); });
      }
      ptx::wait_copies<0>();
      __syncthreads();  // all warps have read shared memory; thread 0 has set the next work item
      const bool more = items[which ^ 1].exists;
      if (more) start(items[which ^ 1]);
      store(item);
      if (!more) return;
    }
  }

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int j = 0; j < kD / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums_reg[i][j][e] = 0.0f;
      }
    }
  }

  /// Starts loading a work item's keys and its first query tile.
  __device__ void start(const WorkItem& item) {
    const int first = item.seq.first_key - item.n0, last = item.seq.end_key - item.n0;
    const auto load = [&](uint32_t at, const Rows<const T>& from, auto columns) {
      constexpr int kColumns = decltype(columns)::value;
      const int64_t row = item.seq.k_begin + item.n0;
      load_tile_rolled<kBlockN, kColumns, kThreads>(
          tile(at), TileSource<T>{from.at(item.b, row, item.kv_head), from.seq_stride, first, last,
                                  kColumns, true});
    };
    load(smem, args.k1, std::integral_constant<int, kD>());
    load(smem + kKBytes, args.k2, std::integral_constant<int, kD>());
    load(smem + kVAt, args.v, std::integral_constant<int, kValue>());
    if (item.h < item.end_head) {
      set_sources(item, item.h);
      load_stage(0, item, item.begin);
    }
    ptx::commit_copies();
  }

  /// Points the copies of the next stage at the first rows of head h.
  __device__ void set_sources(const WorkItem& item, int h) const {
    const unsigned thread = ptx::reread_thread();
    const int row = static_cast<int>(thread / kChunks), chunk = static_cast<int>(thread % kChunks);
    const int64_t l = item.seq.q_begin + item.begin;
    store_slot(kQ1, args.q1.at(item.b, l + row, h) + chunk * kChunk);
    store_slot(kQ2, args.q2.at(item.b, l + row, h) + chunk * kChunk);
    store_slot(kDO, args.d_o.at(item.b, l + row, h) + chunk * kChunk);
    store_slot(kStats, args.state.lse1.at(item.b, l + thread % kBlockM, h));
  }
  /// Points the next sums of dq at the first rows of head h.
  __device__ void set_dq_target(const WorkItem& item, int h) const {
    const Part part;
    const int unit =
        DqSums::first(args.shape, item.seq, item.b) + (item.begin + part.rows * 32) / DqSums::kRows;
    store_slot(kDq,
               sums.at<kD>(h, unit, part.keys / 2) + part.keys % 2 * (kDqCols / 8) * 4 * kWarpSize);
  }

  /// Starts loading rows [m0, m0 + kBlockM) and advances the source pointers. Rows past the end
  /// become 0: with dO = delta = 0 they add nothing, whatever p is.
  __device__ void load_stage(int step, const WorkItem& item, int m0) const {
    const unsigned thread = ptx::reread_thread();
    const int row = static_cast<int>(thread / kChunks), chunk = static_cast<int>(thread % kChunks);
    const uint32_t to = stage(step) + TileLayout<kD>::offset(row, chunk);
    const int left = item.seq.seq_q - m0;
    copy_rows(kQ1, args.q1.seq_stride, to, left - row, 1);
    copy_rows(kQ2, args.q2.seq_stride, to + kQBytes, left - row, 1);
    copy_rows(kDO, args.d_o.seq_stride, to + 2 * kQBytes, left - row, 2);
    const int stat_row = static_cast<int>(thread % kBlockM);
    const float* const from = load_slot<const float>(kStats);
    store_slot(kStats, from + kBlockM);
    const int64_t apart = args.state.lse2.data - args.state.lse1.data;  // stride of the five arrays
    const uint32_t stat = stage(step) + kStatsAt + stat_row * 4;
    for (int i = static_cast<int>(thread / kBlockM); i < Config::kRowStats;
         i += kThreads / kBlockM) {
      ptx::copy_4_or_zero(stat + i * kBlockM * 4, from + i * apart, stat_row < left);
    }
  }
  /// Copies this thread's chunks of `tiles` tiles with adjacent columns. `left` counts the rows
  /// from this thread's first one to the end of the sequence.
  __device__ void copy_rows(Slot which, int64_t stride, uint32_t to, int left, int tiles) const {
    const T* const from = load_slot<const T>(which);
    store_slot(which, from + kBlockM * stride);
#pragma unroll
    for (int c = 0; c < tiles; ++c) {
#pragma unroll
      for (int i = 0; i < kBlockM / kAtOnce; ++i) {
        ptx::copy_16_or_zero(to + c * kQBytes + i * kAtOnce * kD * 2,
                             from + c * kD + i * kAtOnce * stride, i * kAtOnce < left);
      }
    }
  }

  /// Runs steps (2) to (7) for all heads and rows of a work item. Calls `at_last` in the last step.
  template <class AtLast>
  __device__ void accumulate(const WorkItem& item, const AtLast& at_last) {
    set_dq_target(item, item.h);
    store_pair(kPosition, item.h, item.begin);
    for (int step = 0;; step = load_pair(kStep).x + 1) {
      ptx::wait_copies<0>();
      // All threads' copies of this stage have arrived, and no warp reads the other stage any more.
      __syncthreads();
      const auto [h, m0] = load_pair(kPosition);
      if (m0 + kBlockM < item.end) {
        load_stage(step + 1, item, m0 + kBlockM);
      } else if (h + 1 < item.end_head) {
        set_sources(item, h + 1);
        load_stage(step + 1, item, item.begin);
      } else {
        at_last();
      }
      ptx::commit_copies();
      int bad_keys = step == 0 ? 0 : load_pair(kStep).y;
      if (step == 0) {
        bad_keys = __syncthreads_or(has_non_finite<2 * kBlockN, kD, kThreads>(tile(smem)));
      }
      store_pair(kStep, step, bad_keys);
      add_step(item);
      if (!advance(item)) return;
    }
  }

  /// Advances kPosition to the next query tile. Returns false after the last one.
  __device__ bool advance(const WorkItem& item) const {
    auto [h, m0] = load_pair(kPosition);
    m0 += kBlockM;
    if (m0 >= item.end) {
      m0 = item.begin, ++h;
      if (h >= item.end_head) return false;
      set_dq_target(item, h);
    }
    store_pair(kPosition, h, m0);
    return true;
  }

  __device__ void add_step(const WorkItem& item) {
    const int m0 = load_pair(kPosition).y;
    const bool full = m0 >= item.full_begin && min(m0 + kBlockM, item.seq.seq_q) <= item.full_end;
    if (full) {
      make_gradients<false>(~0u);
      __syncthreads();  // all warps have stored a, ds1 and ds2
      add_keys(false);
      add_queries(item, false);
    } else {  // all threads of the block have the same `full`, so all reach the vote's barrier
      const T* const rows = tile(stage(load_pair(kStep).x));
      const bool skip_zeros =
          __syncthreads_or(has_non_finite<4 * kBlockM, kD, kThreads>(rows)) != 0;
      const Part part;
      make_gradients<true>(
          visible_word(item.seq, m0 + part.rows * 32 + part.lane, item.n0 + part.keys * 32));
      __syncthreads();  // all warps have stored a, ds1 and ds2
      add_keys(skip_zeros);
      add_queries(item, load_pair(kStep).y != 0);
    }
  }

  /// Computes (2) to (5). `seen`: the visibility word of the warp's row number `lane` for the
  /// warp's 32 keys.
  template <bool kMasked>
  __device__ void make_gradients(uint32_t seen) const {
    const Part part;
    const uint32_t from = stage(load_pair(kStep).x);
    const uint32_t stat = from + kStatsAt + (part.rows * 32 + part.lane / 4) * 4;
    const auto stats = [&](int which, int i, int r) {
      return ptx::load_float(stat + (which * kBlockM + i * 16 + r * 8) * 4);
    };
    const auto matrices =
        ptx::MatrixStore::of(part.lane, [&](int row, int matrix) {  // rows 8 apart: same swizzle
          return smem + kExchangeAt +
                 TileLayout<kBlockN>::offset(part.rows * 32 + row, part.keys * 4 + matrix);
        });
    const auto store_row = [&](int which, int i, int r, const uint32_t(&words)[4]) {
      matrices.store(which * kExchangeBytes + (i * 16 + r * 8) * kBlockN * 2, words);
    };
    const auto q = KMajor<kD>::a(from, part.rows * 32, part.lane);
    const auto k = KMajor<kD>::b(smem, part.keys * 32, part.lane);
    const auto v = KMajor<kValue>::b(smem + kVAt, part.keys * 32, part.lane);
    ScoreTile p1 = {}, p2 = {}, dp = {};
    add_tiles<T, kD>(p1, q, k);
    probabilities<kMasked>(p1, args.scale_log2, 0, stats, seen);
    add_tiles<T, kD>(p2, q.offset_by(kQBytes), k.offset_by(kKBytes));
    probabilities<kMasked>(p2, args.scale2_log2, 1, stats, seen);
    store_difference<T>(p1, p2, stats, store_row);
    add_tiles<T, kD>(dp, q.offset_by(2 * kQBytes), v);
    add_tiles<T, kD>(dp, q.offset_by(3 * kQBytes), v.offset_by(2 * kD));
    store_gradients<T, kMasked>(p1, p2, dp, stats, store_row);
  }

  template <bool kMasked, class Stats>
  __device__ void probabilities(ScoreTile& s, float factor, int map, const Stats& stats,
                                uint32_t seen) const {
    subtract_lse(s, factor, map, stats);
    if (kMasked) mask_unseen(s, seen);
    to_probabilities(s);
  }

  /// Computes (6). If `skip_zeros`, it skips zeros of ds, because hidden keys may be infinite or
  /// NaN. part.keys selects the map and half of its columns.
  __device__ void add_queries(const WorkItem& item, bool skip_zeros) const {
    const Part part;
    const int map = part.keys / 2, column = part.keys % 2 * kDqCols;
    const uint32_t ds = smem + kExchangeAt + map * kExchangeBytes, keys = smem + map * kKBytes;
    Accumulator<2, kDqCols / 8> dq = {};
    if (skip_zeros) {
      add_tiles_skipping_zeros<kBlockN>(
          dq, [&](int m, int k) { return tile_entry<kBlockN>(tile(ds), part.rows * 32 + m, k); },
          [&](int k, int n) { return tile_entry<kD>(tile(keys), k, column + n); });
    } else {
      add_tiles<T, kBlockN>(dq, KMajor<kBlockN>::a(ds, part.rows * 32, part.lane),
                            MnMajor<kD>::b(keys, column, part.lane));
    }
    const int rows_left = item.seq.seq_q - load_pair(kPosition).y;
    float* const to = load_slot<float>(kDq);
    store_slot(kDq, to + 2 * kBlockM * kD);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (part.rows * 32 + i * DqSums::kRows >= rows_left) continue;
#pragma unroll
      for (int j = 0; j < kDqCols / 8; ++j) {
        DqSums::add(to + i * 2 * DqSums::kRows * kD, j, dq[i][j]);
      }
    }
  }

  /// Computes (7). Column blocks 0 and 1 are dv += a^T dO, one half of dO's columns each. Blocks 2
  /// and 3 are dk1 += ds1^T q1 and dk2 += ds2^T q2. If `skip_zeros`, it skips zeros of a and ds.
  __device__ void add_keys(bool skip_zeros) {
    const Part part;
    const uint32_t from = stage(load_pair(kStep).x);
    const bool is_dv = part.block < 2;
    const uint32_t a = smem + kExchangeAt + (is_dv ? 2 : part.block - 2) * kExchangeBytes;
    const uint32_t b = from + (is_dv ? part.block + 2 : part.block - 2) * kQBytes;
    const int key = part.half * (kBlockN / 2);
    if (skip_zeros) {
      add_tiles_skipping_zeros<kBlockM>(
          sums_reg, [&](int n, int m) { return tile_entry<kBlockN>(tile(a), m, key + n); },
          [&](int m, int c) { return tile_entry<kD>(tile(b), m, c); });
    } else {
      add_tiles<T, kBlockM>(sums_reg, MnMajor<kBlockN>::a(a, key, part.lane),
                            MnMajor<kD>::b(b, 0, part.lane));
    }
  }

  __device__ void store(const WorkItem& item) const {
    const Part part;
    const bool is_dv = part.block < 2, is_dk1 = part.block == 2;
    const Rows<T>& out = is_dv ? args.dv : is_dk1 ? args.dk1 : args.dk2;
    if (out.data == nullptr) return;
    T* const first = out.at(item.b, item.seq.k_begin, item.kv_head) + (part.block == 1 ? kD : 0);
    const float scale = is_dv ? 1.0f : is_dk1 ? args.scale : args.scale2;
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      store_aligned_fragments(sums_reg[i], scale, first, out.seq_stride,
                              item.n0 + part.half * (kBlockN / 2) + i * 16, item.seq.seq_k);
    }
  }
};

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    backward_plain_kernel(const __grid_constant__ BackwardArguments<T> args,
                          const __grid_constant__ DqSums sums, int tiles, int group) {
  extern __shared__ __align__(128) char smem[];
  __shared__ WorkItem items[2];
  BackwardPlain<T, Config>{args, sums, items, ptx::smem_address(smem)}.run(tiles, group);
}

}  // namespace diffattn::cuda::sm80
