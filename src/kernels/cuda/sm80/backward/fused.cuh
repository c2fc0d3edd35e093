// SPDX-License-Identifier: Apache-2.0
//
// Fused sm80 backward: all gradients in one pass over the keys. Blocks add to dq atomically, so the
// order of these sums varies from run to run. The deterministic backward uses keys.cuh and
// queries.cuh. A block owns kBlockN keys of one (batch entry, kv head) and visits the query rows of
// all heads of the kv head ("the group"):
//
//   (1) load k1, k2, v once
//   for each head of the group, for each query tile that sees any of these keys:
//     (2) s1 = q1 k1^T, s2 = q2 k2^T                       [kBlockM, kBlockN]
//     (3) p = exp2(scale log2(e) s + mask - lse)           lse is known: no running maximum
//     (4) dp = dO v^T;  ds1 = p1 (dp - delta1), ds2 = -lambda p2 (dp - delta2)
//     (5) store a = p1 - lambda p2, ds1, ds2 to shared memory
//     (6) sums of dq1 += ds1 k1, of dq2 += ds2 k2          atomic additions
//     (7) dv += a^T dO,  dk1 += ds1^T q1,  dk2 += ds2^T q2
//   (8) store dv, scale dk1, scale2 dk2
//
// Two passes would compute s1, s2 and dp twice: 28 D instead of 20 D FLOP per (query, key) pair if
// Dv = 2 D. Shared-memory reads limit the speed, so each warp computes a large part of every
// product: 32 queries x 32 keys in (2) to (5); 32 queries x kDqCols columns of one map's dq in (6);
// 32 keys of one map's dk and of half of dv's columns in (7). Sums are in float, operands in T.
#pragma once

#include <type_traits>

#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/sm80/backward/arguments.cuh"
#include "kernels/cuda/sm80/backward/config.h"
#include "kernels/cuda/sm80/backward/dq_sums.cuh"
#include "kernels/cuda/sm80/backward/products.cuh"
#include "kernels/cuda/sm80/backward/scores.cuh"
#include "kernels/cuda/sm80/bias_tile.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/sm80/tile_order.cuh"
#include "kernels/cuda/sm80/visible_words.cuh"

namespace diffattn::cuda::sm80 {

/// Query ranges of one block. They live in shared memory, because the kernel has no free registers.
struct FusedBounds {
  Sequence seq;
  int begin, end;  // query rows that see any of the block's keys; begin is a multiple of kBlockM
  int end_head;    // one past the group's last head; its first head if no row sees the keys

  template <class Config>
  __device__ void set(const Shape& shape, const WorkTile& work) {
    seq = shape.sequence(work.b);
    const int n0 = work.tile * Config::kBlockN, group = shape.heads / shape.kv_heads;
    const int first_key = max(n0, seq.first_key);
    const int end_key = min(n0 + Config::kBlockN, seq.end_key);
    begin = end = 0;
    if (first_key < end_key) {
      begin = seq.first_row(first_key) / Config::kBlockM * Config::kBlockM;
      end = seq.end_row(end_key - 1);
    }
    end_head = (begin < end ? work.h + 1 : work.h) * group;
  }
};

template <class T, class Config>
struct BackwardFused {
  static constexpr int kD = Config::kHeadDim, kValue = Config::kValueDim;
  static constexpr int kBlockM = Config::kBlockM, kBlockN = Config::kBlockN;
  static constexpr int kThreads = Config::kThreads, kStages = Config::kStages;
  static constexpr int kDqCols = 4 * kD / Config::kWarps;  // columns of dq that a warp computes

  const BackwardArguments<T>& args;
  char* smem;
  const WorkTile work;  // h: kv head
  const FusedBounds& bounds;
  const DqSums sums;
  const Sequence& seq = bounds.seq;
  const int n0 = work.tile * kBlockN;
  const int lane = threadIdx.x % kWarpSize;
  const int half = threadIdx.x / kWarpSize % 2;    // which 32 queries; (7): half of dv, one dk
  const int part = threadIdx.x / (2 * kWarpSize);  // which 32 keys; (6): columns of dq

  T* const k_smem = reinterpret_cast<T*>(smem);        // [2, kBlockN, kD]
  T* const v_smem = k_smem + 2 * Config::kKElements;   // [kBlockN, kValue]
  char* const stages_smem = smem + Config::kKeyBytes;  // [kStages] x {q1, q2, dO, stats}

  Accumulator<2, kValue / 16> dv_reg = {};  // [32 keys, half of the columns]
  Accumulator<2, kD / 8> dk_reg = {};       // [32 keys, kD] of one map
  bool bad_keys = false;                    // k1 or k2 holds an infinity or NaN

  __device__ void run() {
    if (n0 >= seq.seq_k) return;
    load_keys();  // (1)
    int h = work.h * (args.shape.heads / args.shape.kv_heads), m0 = bounds.begin;
    if (h < bounds.end_head) load_stage(0, h, m0);
    ptx::commit_copies();
    for (int step = 0; h < bounds.end_head; ++step) {
      ptx::wait_copies<0>();
      // All threads' copies of this stage have arrived, and no warp reads the other stage any more.
      __syncthreads();
      if constexpr (kStages == 2) load_next((step + 1) % 2, h, m0);
      if (step == 0) {
        bad_keys = __syncthreads_or(has_non_finite<2 * kBlockN, kD, kThreads>(k_smem)) != 0;
      }
      accumulate(step % kStages, h, m0);
      if constexpr (kStages == 1) {
        __syncthreads();  // all warps have read the stage
        load_next(0, h, m0);
      }
      advance(h, m0);
    }
    ptx::wait_copies<0>();
    store();  // (8)
  }

  /// Advances (h, m0) to the group's next query tile.
  __device__ void advance(int& h, int& m0) const {
    m0 += kBlockM;
    if (m0 >= bounds.end) m0 = bounds.begin, ++h;
  }
  __device__ void load_next(int stage, int h, int m0) const {
    advance(h, m0);
    if (h < bounds.end_head) load_stage(stage, h, m0);
    ptx::commit_copies();
  }

  __device__ void load_keys() const {
    const int first = seq.first_key - n0, last = seq.end_key - n0;
    const auto load = [&](T* tile, const Rows<const T>& rows, auto cols, int width, bool aligned) {
      load_tile_rolled<kBlockN, decltype(cols)::value, kThreads>(
          tile, TileSource<T>{rows.at(work.b, seq.k_begin + n0, work.h), rows.seq_stride, first,
                              last, width, aligned});
    };
    using std::integral_constant;
    const integral_constant<int, kD> d;
    load(k_smem, args.k1, d, args.shape.head_dim, args.k_aligned);
    load(k_smem + Config::kKElements, args.k2, d, args.shape.head_dim, args.k_aligned);
    load(v_smem, args.v, integral_constant<int, kValue>(), args.shape.value_dim, args.v_aligned);
  }

  __device__ T* q_smem(int stage) const {
    return reinterpret_cast<T*>(stages_smem + stage * Config::kStageBytes);
  }
  __device__ T* d_o_smem(int stage) const { return q_smem(stage) + 2 * Config::kQElements; }
  __device__ float* stats_smem(int stage) const {
    return reinterpret_cast<float*>(d_o_smem(stage) + kBlockM * kValue);
  }
  /// Returns a tile [kBlockM, kBlockN] that the warps exchange: ds1 (0), ds2 (1) or a (2).
  __device__ T* exchange_smem(int which) const {
    return reinterpret_cast<T*>(stages_smem + kStages * Config::kStageBytes) +
           which * Config::kDsElements;
  }

  /// Starts loading a query tile. Rows past the end become 0: with dO = delta = 0 they add nothing,
  /// whatever p is.
  __device__ void load_stage(int stage, int h, int m0) const {
    T* const q = q_smem(stage);
    const bool unchecked = args.q_aligned && args.d_o_aligned && args.shape.head_dim == kD &&
                           args.shape.value_dim == kValue && m0 + kBlockM <= seq.seq_q;
    if (unchecked) {
      load_unchecked<kD>(q, args.q1, h, m0);
      load_unchecked<kD>(q + Config::kQElements, args.q2, h, m0);
      load_unchecked<kValue>(d_o_smem(stage), args.d_o, h, m0);
    } else {
      load_checked<kD>(q, args.q1, h, m0, args.shape.head_dim, args.q_aligned);
      load_checked<kD>(q + Config::kQElements, args.q2, h, m0, args.shape.head_dim, args.q_aligned);
      load_checked<kValue>(d_o_smem(stage), args.d_o, h, m0, args.shape.value_dim,
                           args.d_o_aligned);
    }
    const int row = threadIdx.x % kBlockM;
    const bool valid = m0 + row < seq.seq_q;
    const float* const from = args.state.lse1.at(work.b, seq.q_begin + m0 + (valid ? row : 0), h);
    const int64_t apart = args.state.lse2.data - args.state.lse1.data;  // stride of the five arrays
    const uint32_t to = ptx::smem_address(stats_smem(stage) + row);
    for (int i = threadIdx.x / kBlockM; i < Config::kRowStats; i += kThreads / kBlockM) {
      ptx::copy_4_or_zero(to + i * kBlockM * 4, from + i * apart, valid);
    }
  }

  /// Copies a whole tile. Each thread keeps its chunk column and steps down the rows by a multiple
  /// of 8, which leaves the swizzle unchanged.
  template <int kCols>
  __device__ void load_unchecked(T* tile, const Rows<const T>& rows, int h, int m0) const {
    constexpr int kChunks = kCols / kChunk, kAtOnce = kThreads / kChunks;
    static_assert(kThreads % kChunks == 0 && kAtOnce % 8 == 0 && kBlockM % kAtOnce == 0);
    const int row = static_cast<int>(threadIdx.x) / kChunks, chunk = threadIdx.x % kChunks;
    const T* const from = rows.at(work.b, seq.q_begin + m0 + row, h) + chunk * kChunk;
    const uint32_t to = ptx::smem_address(tile) + TileLayout<kCols>::offset(row, chunk);
#pragma unroll
    for (int i = 0; i < kBlockM / kAtOnce; ++i) {
      ptx::copy_16_or_zero(to + i * kAtOnce * kCols * 2, from + i * kAtOnce * rows.seq_stride,
                           true);
    }
  }
  /// Copies the tile's rows that lie within the sequence and fills the others with 0.
  template <int kCols>
  __device__ void load_checked(T* tile, const Rows<const T>& rows, int h, int m0, int cols,
                               bool aligned) const {
    load_tile_rolled<kBlockM, kCols, kThreads>(
        tile, TileSource<T>{rows.at(work.b, seq.q_begin + m0, h), rows.seq_stride, 0,
                            seq.seq_q - m0, cols, aligned});
  }

  __device__ void accumulate(int stage, int h, int m0) {
    const HeadMask mask{args.shape, seq, work.b, h};
    const bool full = mask.all_visible(m0, min(m0 + kBlockM, seq.seq_q), n0, n0 + kBlockN);
    const bool boolean = args.shape.mask.kind == MaskKind::kBoolean;
    const uint32_t seen = full ? ~0u : seen_word(mask, m0 + half * 32 + lane, n0 + part * 32);
    if (boolean && __syncthreads_or(seen != 0) == 0) return;  // no row of the tile sees a key
    bool skip_zeros = false;
    if (!full) {  // all threads of the block have the same `full`, so all reach the vote's barrier
      skip_zeros =
          __syncthreads_or(has_non_finite<2 * kBlockM, kD, kThreads>(q_smem(stage)) ||
                           has_non_finite<kBlockM, kValue, kThreads>(d_o_smem(stage))) != 0;
    }
    if (full) {
      make_gradients<false>(stage, h, m0, seen);
    } else {
      make_gradients<true>(stage, h, m0, seen);
    }
    __syncthreads();                        // all warps have stored a, ds1 and ds2
    add_queries(h, m0, bad_keys && !full);  // (6)
    add_keys(stage, skip_zeros);            // (7)
  }

  /// Computes (2) to (5). `seen`: the visibility word of the warp's row number `lane` for the
  /// warp's 32 keys.
  template <bool kMasked>
  __device__ void make_gradients(int stage, int h, int m0, uint32_t seen) const {
    const T* const q = q_smem(stage);
    const float* const stats = stats_smem(stage) + half * 32 + lane / 4;
    const bool has_bias = kMasked && args.shape.mask.kind == MaskKind::kAdditive;
    if (has_bias) {
      const HeadMask mask{args.shape, seq, work.b, h};
      load_bias<32>(bias_smem(), mask, m0 + half * 32, n0 + part * 32);
    }
    const auto stat = [&](int which, int i, int r) {
      return stats[which * kBlockM + i * 16 + r * 8];
    };
    const auto store_row = [&](int which, int i, int r, const uint32_t(&words)[4]) {
      store_words(which, i, r, words);
    };
    ScoreTile p1 = {}, p2 = {};
    add_tiles<T, kD>(p1, KMajor<kD>::a(q, half * 32), KMajor<kD>::b(k_smem, part * 32));
    probabilities<kMasked>(p1, args.scale_log2, 0, stat, has_bias, seen);
    add_tiles<T, kD>(p2, KMajor<kD>::a(q + Config::kQElements, half * 32),
                     KMajor<kD>::b(k_smem + Config::kKElements, part * 32));
    probabilities<kMasked>(p2, args.scale2_log2, 1, stat, has_bias, seen);
    if (has_bias) __syncthreads();  // all warps have read their biases; a and ds overwrite them
    store_difference<T>(p1, p2, stat, store_row);
    ScoreTile dp = {};
    add_tiles<T, kValue>(dp, KMajor<kValue>::a(d_o_smem(stage), half * 32),
                         KMajor<kValue>::b(v_smem, part * 32));
    store_gradients<T, kMasked>(p1, p2, dp, stat, store_row);
  }

  /// Returns this warp's biases, in the memory that later holds a, ds1 and ds2.
  static_assert(Config::kWarps * 32 * kBiasPitch * 4 <= 3 * Config::kDsElements * 2);
  __device__ float* bias_smem() const {
    return reinterpret_cast<float*>(exchange_smem(0)) + (part * 2 + half) * 32 * kBiasPitch;
  }

  template <bool kMasked, class Stats>
  __device__ void probabilities(ScoreTile& s, float factor, int map, const Stats& stats,
                                bool has_bias, uint32_t seen) const {
    subtract_lse(s, factor, map, stats);
    if (kMasked && has_bias) {
      add_bias(s[0], bias_smem());
      add_bias(s[1], bias_smem() + 16 * kBiasPitch);
    }
    if (kMasked && !has_bias) mask_unseen(s, seen);
    to_probabilities(s);
  }

  /// Stores 8 rows of this warp's tile of a, ds1 or ds2 to shared memory.
  __device__ void store_words(int which, int i, int r, const uint32_t (&words)[4]) const {
    using Layout = TileLayout<kBlockN>;
    const uint32_t first = ptx::smem_address(exchange_smem(0)) +
                           Layout::offset(half * 32 + lane / 4, part * 4) + lane % 4 * 4;
    constexpr int kRow = kBlockN * 2;  // bytes; rows 8 apart have the same swizzle
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      ptx::store_4((first ^ (j * 16)) + (i * 16 + r * 8) * kRow + which * Config::kDsElements * 2,
                   words[j]);
    }
  }

  /// Computes (6). If `skip_zeros`, it skips zeros of ds, because hidden keys may be infinite or
  /// NaN.
  __device__ void add_queries(int h, int m0, bool skip_zeros) const {
    const int map = part * kDqCols / kD, column = part * kDqCols % kD;
    const T* const ds = exchange_smem(map);
    const T* const keys = k_smem + map * Config::kKElements;
    Accumulator<2, kDqCols / 8> dq = {};
    if (skip_zeros) {
      add_tiles_skipping_zeros<kBlockN>(
          dq, [&](int m, int k) { return tile_entry<kBlockN>(ds, half * 32 + m, k); },
          [&](int k, int n) { return tile_entry<kD>(keys, k, column + n); });
    } else {
      add_tiles<T, kBlockN>(dq, KMajor<kBlockN>::a(ds, half * 32), MnMajor<kD>::b(keys, column));
    }
    const int first = m0 + half * 32;
    const int unit = DqSums::first(args.shape, seq, work.b) + first / DqSums::kRows;
    float* const to = sums.at<kD>(h, unit, map) + column / 8 * 4 * kWarpSize;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (first + i * DqSums::kRows >= seq.seq_q) continue;
#pragma unroll
      for (int j = 0; j < kDqCols / 8; ++j) {
        DqSums::add(to + i * 2 * DqSums::kRows * kD, j, dq[i][j]);
      }
    }
  }

  /// Computes (7). If `skip_zeros`, it skips zeros of a and ds, because rows that do not see a key
  /// may hold an infinity or NaN.
  __device__ void add_keys(int stage, bool skip_zeros) {
    const T* const a = exchange_smem(2);
    const T* const ds = exchange_smem(half);
    const T* const q = q_smem(stage) + half * Config::kQElements;
    const T* const d_o = d_o_smem(stage);
    const int column = half * (kValue / 2);
    if (skip_zeros) {
      add_tiles_skipping_zeros<kBlockM>(
          dv_reg, [&](int n, int m) { return tile_entry<kBlockN>(a, m, part * 32 + n); },
          [&](int m, int c) { return tile_entry<kValue>(d_o, m, column + c); });
      add_tiles_skipping_zeros<kBlockM>(
          dk_reg, [&](int n, int m) { return tile_entry<kBlockN>(ds, m, part * 32 + n); },
          [&](int m, int c) { return tile_entry<kD>(q, m, c); });
      return;
    }
    add_tiles<T, kBlockM>(dv_reg, MnMajor<kBlockN>::a(a, part * 32),
                          MnMajor<kValue>::b(d_o, column));
    add_tiles<T, kBlockM>(dk_reg, MnMajor<kBlockN>::a(ds, part * 32), MnMajor<kD>::b(q, 0));
  }

  __device__ void store() const {
    const Rows<T>& dk = half == 0 ? args.dk1 : args.dk2;
    const int column = half * (kValue / 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = n0 + part * 32 + i * 16;
      if (args.dv.data != nullptr) {
        store_fragments(dv_reg[i], 1.0f, args.dv.at(work.b, seq.k_begin, work.h) + column,
                        args.dv.seq_stride, row, seq.seq_k, args.shape.value_dim - column);
      }
      if (dk.data != nullptr) {
        store_fragments(dk_reg[i], half == 0 ? args.scale : args.scale2,
                        dk.at(work.b, seq.k_begin, work.h), dk.seq_stride, row, seq.seq_k,
                        args.shape.head_dim);
      }
    }
  }
};

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    backward_fused_kernel(const __grid_constant__ BackwardArguments<T> args, DqSums sums, int tiles,
                          int group) {
  extern __shared__ __align__(128) char smem[];
  __shared__ FusedBounds bounds;
  // The grid starts with tile 0: under a causal mask, more rows see it than any other tile.
  const WorkTile work = grouped_work_tile(static_cast<int>(blockIdx.x), args.shape.batch,
                                          args.shape.kv_heads, tiles, group);
  if (threadIdx.x == 0) bounds.set<Config>(args.shape, work);
  __syncthreads();  // thread 0 has set the bounds
  BackwardFused<T, Config>{args, smem, work, bounds, sums}.run();
}

}  // namespace diffattn::cuda::sm80
