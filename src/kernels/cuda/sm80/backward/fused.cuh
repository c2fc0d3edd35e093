// SPDX-License-Identifier: Apache-2.0
//
// All gradients in one pass over the keys, where their order of sums is free. One block owns
// kBlockN keys of one (batch entry, kv head) and goes over the query rows of all heads of the
// group:
//
//   (1) load k1, k2, v once
//   for each head of the group, for each query tile that sees any of these keys:
//     (2) s1 = k1 q1^T, s2 = k2 q2^T                       transposed: [keys, queries]
//     (3) p = exp2(scale log2(e) s + mask - lse)           final at once, no running maximum
//     (4) dv += (p1 - lambda p2) dO
//     (5) dp = v dO^T;  ds1 = p1 (dp - delta1), ds2 = -lambda p2 (dp - delta2)
//     (6) dk1 += ds1 q1,  dk2 += ds2 q2
//     (7) sums of dq1 += ds1^T k1, of dq2 += ds2^T k2      ds through shared memory, atomic
//     additions
//   (8) store dv, scale dk1, scale2 dk2
//
// Against two passes (keys.cuh, queries.cuh) this saves the second s1, s2 and dp: 20 products a
// pair instead of 28. Each warp owns 16 keys in (2) to (6) and 16 rows of one map in (7). All sums
// are in float, operands in T.
#pragma once

#include <type_traits>

#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/sm80/backward/arguments.cuh"
#include "kernels/cuda/sm80/backward/config.h"
#include "kernels/cuda/sm80/backward/dq_sums.cuh"
#include "kernels/cuda/sm80/tile.cuh"

namespace diffattn::cuda::sm80 {

template <class T, class Config>
struct BackwardFused {
  static constexpr int kD = Config::kHeadDim, kValue = Config::kValueDim;
  static constexpr int kBlockM = Config::kBlockM, kBlockN = Config::kBlockN;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kM8 = kBlockM / 8;
  using Tile = float[kM8][4];                    // of a warp: [16 keys, kBlockM queries]
  using Operand = uint32_t[1][kBlockM / 16][4];  // the same, rounded

  const BackwardArguments<T>& args;
  char* smem;
  const BlockPlace place;  // h: kv head
  const Sequence& seq;     // in shared memory: there are no registers for it
  const DqSums sums;
  const int n0 = place.tile * kBlockN;
  const int lane = threadIdx.x % kWarpSize;
  const int warp_row = threadIdx.x / kWarpSize * 16;

  T* const k_smem = reinterpret_cast<T*>(smem);        // [2, kBlockN, kD]
  T* const v_smem = k_smem + 2 * Config::kKElements;   // [kBlockN, kValue]
  char* const stages_smem = smem + Config::kKeyBytes;  // [2] x {q1, q2, dO, stats}

  Accumulator<1, kValue / 8> dv_reg = {};
  Accumulator<1, kD / 8> dk1_reg = {}, dk2_reg = {};
  bool bad_keys = false;  // some are infinite or NaN

  __device__ void run() {
    if (n0 >= seq.seq_k) return;
    const int first_key = max(n0, seq.first_key), end_key = min(n0 + kBlockN, seq.end_key);
    int begin = 0, end = 0;  // query rows that see any of these keys
    if (first_key < end_key) {
      begin = seq.first_row(first_key) / kBlockM * kBlockM;
      end = seq.end_row(end_key - 1);
    }
    load_keys();  // (1)
    const int group = args.shape.heads / args.shape.kv_heads;
    const int end_head = (place.h + 1) * group;
    int h = place.h * group, m0 = begin;
    if (begin < end) load_stage(0, h, m0);
    ptx::commit_copies();
    for (int step = 0; m0 < end && h < end_head; ++step) {
      ptx::wait_copies<0>();
      __syncthreads();  // this stage has landed for every thread, and nobody reads the other
      int next_m0 = m0 + kBlockM, next_h = h;
      if (next_m0 >= end) next_m0 = begin, ++next_h;
      if (next_h < end_head) load_stage((step + 1) % 2, next_h, next_m0);
      ptx::commit_copies();
      if (step == 0) {
        bad_keys = __syncthreads_or(has_non_finite<2 * kBlockN, kD, kThreads>(k_smem)) != 0;
      }
      accumulate(step % 2, h, m0);
      m0 = next_m0, h = next_h;
    }
    ptx::wait_copies<0>();
    store();  // (8)
  }

  __device__ void load_keys() const {
    const int first = seq.first_key - n0, last = seq.end_key - n0;
    const auto load = [&](T* tile, const Rows<const T>& rows, auto cols, int width, bool aligned) {
      load_tile_slowly<kBlockN, decltype(cols)::value, kThreads>(
          tile, TileSource<T>{rows.at(place.b, seq.k_begin + n0, place.h), rows.seq_stride, first,
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
  __device__ T* ds_smem(int map) const {  // [kBlockN, kBlockM]
    return reinterpret_cast<T*>(stages_smem + 2 * Config::kStageBytes) + map * Config::kDsElements;
  }

  /// Rows past the end become 0: with dO = delta = 0 they add nothing whatever p is.
  __device__ void load_stage(int stage, int h, int m0) const {
    T* const q = q_smem(stage);
    const bool whole = args.q_aligned && args.d_o_aligned && args.shape.head_dim == kD &&
                       args.shape.value_dim == kValue && m0 + kBlockM <= seq.seq_q;
    if (whole) {
      load_whole<kD>(q, args.q1, h, m0);
      load_whole<kD>(q + Config::kQElements, args.q2, h, m0);
      load_whole<kValue>(d_o_smem(stage), args.d_o, h, m0);
    } else {
      load_part<kD>(q, args.q1, h, m0, args.shape.head_dim, args.q_aligned);
      load_part<kD>(q + Config::kQElements, args.q2, h, m0, args.shape.head_dim, args.q_aligned);
      load_part<kValue>(d_o_smem(stage), args.d_o, h, m0, args.shape.value_dim, args.d_o_aligned);
    }
    static_assert(kBlockM == kWarpSize);  // a lane for each row
    const bool valid = m0 + lane < seq.seq_q;
    const float* const from = args.state.lse1.at(place.b, seq.q_begin + m0 + (valid ? lane : 0), h);
    const int64_t apart = args.state.lse2.data - args.state.lse1.data;  // of all five arrays
    const uint32_t to = ptx::smem_address(stats_smem(stage) + lane);
    for (int i = threadIdx.x / kWarpSize; i < Config::kRowStats; i += Config::kWarps) {
      ptx::copy_4_or_zero(to + i * kBlockM * 4, from + i * apart, valid);
    }
  }

  /// A thread keeps its chunk and goes down the rows in steps of a multiple of 8, which leave the
  /// swizzle alone.
  template <int kCols>
  __device__ void load_whole(T* tile, const Rows<const T>& rows, int h, int m0) const {
    constexpr int kChunks = kCols / kChunk, kAtOnce = kThreads / kChunks;
    static_assert(kThreads % kChunks == 0 && kAtOnce % 8 == 0 && kBlockM % kAtOnce == 0);
    const int row = static_cast<int>(threadIdx.x) / kChunks, chunk = threadIdx.x % kChunks;
    const T* const from = rows.at(place.b, seq.q_begin + m0 + row, h) + chunk * kChunk;
    const uint32_t to = ptx::smem_address(tile) + TileLayout<kCols>::offset(row, chunk);
#pragma unroll
    for (int i = 0; i < kBlockM / kAtOnce; ++i) {
      ptx::copy_16_or_zero(to + i * kAtOnce * kCols * 2, from + i * kAtOnce * rows.seq_stride,
                           true);
    }
  }
  template <int kCols>
  __device__ void load_part(T* tile, const Rows<const T>& rows, int h, int m0, int cols,
                            bool aligned) const {
    load_tile_slowly<kBlockM, kCols, kThreads>(
        tile, TileSource<T>{rows.at(place.b, seq.q_begin + m0, h), rows.seq_stride, 0,
                            seq.seq_q - m0, cols, aligned});
  }

  __device__ void accumulate(int stage, int h, int m0) {
    const T* const q1_smem = q_smem(stage);
    const T* const q2_smem = q1_smem + Config::kQElements;
    const T* const dout_smem = d_o_smem(stage);
    const float* const stats = stats_smem(stage);
    const HeadMask mask{args.shape, seq, place.b, h};
    const bool full = mask.all_visible(m0, min(m0 + kBlockM, seq.seq_q), n0, n0 + kBlockN);
    bool skip_zeros = false;
    if (!full) {  // a vote, which is a barrier too: every thread of the block agrees on it
      skip_zeros = __syncthreads_or(has_non_finite<2 * kBlockM, kD, kThreads>(q1_smem) ||
                                    has_non_finite<kBlockM, kValue, kThreads>(dout_smem)) != 0;
    }
    Accumulator<1, kM8> s1 = {}, s2 = {};
    multiply_transposed<1, kBlockM, kD>(s1, k_smem, warp_row, q1_smem);  // (2)
    multiply_transposed<1, kBlockM, kD>(s2, k_smem + Config::kKElements, warp_row, q2_smem);
    subtract_lse(s1[0], s2[0], stats);
    if (!full) apply_mask(s1[0], s2[0], mask, m0);
    Operand a;
    probabilities(a, s1[0], s2[0], stats);                  // (3)
    add_product<kValue>(dv_reg, a, dout_smem, skip_zeros);  // (4)
    Accumulator<1, kM8> dp = {};
    multiply_transposed<1, kBlockM, kValue>(dp, v_smem, warp_row, dout_smem);  // (5)
    Operand ds1, ds2;
    if (full) {
      gradients<false>(ds1, ds2, s1[0], s2[0], dp[0], stats);
    } else {
      gradients<true>(ds1, ds2, s1[0], s2[0], dp[0], stats);
    }
    share(ds1, 0);
    share(ds2, 1);
    add_product<kD>(dk1_reg, ds1, q1_smem, skip_zeros);  // (6)
    add_product<kD>(dk2_reg, ds2, q2_smem, skip_zeros);
    __syncthreads();                        // ds of every warp is there
    add_queries(h, m0, bad_keys && !full);  // (7)
  }

  /// Of a row's statistic: this thread's queries of fragment j.
  __device__ float2 stat(const float* stats, int which, int j) const {
    return *reinterpret_cast<const float2*>(stats + which * kBlockM + j * 8 + lane % 4 * 2);
  }

  __device__ void subtract_lse(Tile& s1, Tile& s2, const float* stats) const {
#pragma unroll
    for (int j = 0; j < kM8; ++j) {
      const float2 lse1 = stat(stats, 0, j), lse2 = stat(stats, 1, j);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s1[j][e] = s1[j][e] * args.scale_log2 - (e % 2 == 0 ? lse1.x : lse1.y);
        s2[j][e] = s2[j][e] * args.scale2_log2 - (e % 2 == 0 ? lse2.x : lse2.y);
      }
    }
  }

  __device__ void apply_mask(Tile& s1, Tile& s2, const HeadMask& mask, int m0) const {
#pragma unroll
    for (int j = 0; j < kM8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float bias =
            mask.bias(m0 + j * 8 + lane % 4 * 2 + e % 2, n0 + warp_row + lane / 4 + e / 2 * 8);
        s1[j][e] = bias == -INFINITY ? bias : s1[j][e] + bias;
        s2[j][e] = bias == -INFINITY ? bias : s2[j][e] + bias;
      }
    }
  }

  /// s1 to p1, s2 to lambda p2, a = p1 - lambda p2. No p is above 1: where scores are so large that
  /// lse rounds to less than one of them, the bound keeps p from exploding.
  __device__ void probabilities(Operand& a, Tile& s1, Tile& s2, const float* stats) const {
#pragma unroll
    for (int j = 0; j < kM8; ++j) {
      const float2 lambda = stat(stats, 4, j);
      float x[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s1[j][e] = ptx::probability(s1[j][e]);
        s2[j][e] = ptx::probability(s2[j][e]) * (e % 2 == 0 ? lambda.x : lambda.y);
        x[e] = s1[j][e] - s2[j][e];
      }
      a[0][j / 2][j % 2 * 2] = pack<T>(x[0], x[1]);
      a[0][j / 2][j % 2 * 2 + 1] = pack<T>(x[2], x[3]);
    }
  }

  template <bool kMasked>
  __device__ void gradients(Operand& ds1, Operand& ds2, const Tile& p1, const Tile& p2,
                            const Tile& dp, const float* stats) const {
#pragma unroll
    for (int j = 0; j < kM8; ++j) {
      const float2 delta1 = stat(stats, 2, j), delta2 = stat(stats, 3, j);
      float x[4], y[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        x[e] = p1[j][e] * (dp[j][e] - (e % 2 == 0 ? delta1.x : delta1.y));
        y[e] = p2[j][e] * ((e % 2 == 0 ? delta2.x : delta2.y) - dp[j][e]);
        // Selected, not multiplied: what a row may not see can be NaN.
        if (kMasked && p1[j][e] == 0.0f) x[e] = 0.0f;
        if (kMasked && p2[j][e] == 0.0f) y[e] = 0.0f;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        ds1[0][j / 2][j % 2 * 2 + r] = pack<T>(x[2 * r], x[2 * r + 1]);
        ds2[0][j / 2][j % 2 * 2 + r] = pack<T>(y[2 * r], y[2 * r + 1]);
      }
    }
  }

  template <int kCols>
  __device__ void add_product(Accumulator<1, kCols / 8>& sum, const Operand& x, const T* b,
                              bool skip_zeros) const {
    if (skip_zeros) {
      multiply_skipping_zeros<1, kCols, kBlockM>(sum, x, b);
    } else {
      multiply<1, kCols, kBlockM>(sum, x, b);
    }
  }

  /// A warp's ds to shared memory, still [keys, queries].
  __device__ void share(const Operand& ds, int map) const {
    using Layout = TileLayout<kBlockM>;
    const uint32_t first =
        ptx::smem_address(ds_smem(map)) + Layout::offset(warp_row + lane / 4, 0, 0) + lane % 4 * 4;
#pragma unroll
    for (int j = 0; j < kM8; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {  // 8 rows further the swizzle is the same
        ptx::store_4((first ^ (j * 16)) + r * 8 * kBlockM * 2, ds[0][j / 2][j % 2 * 2 + r]);
      }
    }
  }

  __device__ void add_queries(int h, int m0, bool careful) const {
    constexpr int kUnits = kBlockM / DqSums::kRows * 2;  // of both maps
    static_assert(kUnits == Config::kWarps);
    const int map = threadIdx.x / kWarpSize % 2, tile = threadIdx.x / kWarpSize / 2;
    if (m0 + tile * DqSums::kRows >= seq.seq_q) return;
    Accumulator<1, kD / 8> dq = {};
    if (careful) {
      add_keys_carefully(dq[0], map, tile);
    } else {
      add_keys(dq[0], map, tile);
    }
    const int unit = DqSums::first(args.shape, seq, place.b) + m0 / DqSums::kRows + tile;
    float* const to = sums.at<kD>(h, unit, map);
#pragma unroll
    for (int j = 0; j < kD / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) atomicAdd(to + (j * 4 + e) * 32, dq[0][j][e]);
    }
  }

  /// dq [16, kD] += ds^T k for the rows of one unit.
  __device__ void add_keys(float (&dq)[kD / 8][4], int map, int tile) const {
    using DsLayout = TileLayout<kBlockM>;
    using KeyLayout = TileLayout<kD>;
    const uint32_t ds = ptx::smem_address(ds_smem(map)) +
                        DsLayout::offset(lane % 8 + lane / 16 * 8, tile * 2, lane / 8 % 2);
    const uint32_t keys = ptx::smem_address(k_smem + map * Config::kKElements) +
                          KeyLayout::offset(lane % 16, 0, lane / 16);
#pragma unroll
    for (int k = 0; k < kBlockN / 16; ++k) {
      uint32_t ds_reg[4];
      ptx::load_matrix_x4_transposed(ds_reg, ds + k * 16 * kBlockM * 2);
#pragma unroll
      for (int j = 0; j < kD / 16; ++j) {
        uint32_t k_reg[4];
        ptx::load_matrix_x4_transposed(k_reg, KeyLayout::along(keys, j * 2) + k * 16 * kD * 2);
        ptx::mma_m16n8k16<T>(dq[2 * j], ds_reg, k_reg[0], k_reg[1]);
        ptx::mma_m16n8k16<T>(dq[2 * j + 1], ds_reg, k_reg[2], k_reg[3]);
      }
    }
  }

  /// The same without entries of ds that are 0, for keys that are infinite or NaN. Slow, and rare.
  __device__ void add_keys_carefully(float (&dq)[kD / 8][4], int map, int tile) const {
    const auto entry = [](const T* rows, uint32_t offset, int column) {
      const char* const at = reinterpret_cast<const char*>(rows) + offset;
      return widen(reinterpret_cast<const T*>(at)[column % 8]);
    };
#pragma unroll 1
    for (int n = 0; n < kBlockN; ++n) {
      const T* const ds = ds_smem(map);
      const float low = entry(ds, TileLayout<kBlockM>::offset(n, tile * 2), lane / 4);
      const float high = entry(ds, TileLayout<kBlockM>::offset(n, tile * 2 + 1), lane / 4);
#pragma unroll
      for (int j = 0; j < kD / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float x = entry(k_smem + map * Config::kKElements, TileLayout<kD>::offset(n, j),
                                lane % 4 * 2 + e);
          if (low != 0.0f) dq[j][e] += low * x;
          if (high != 0.0f) dq[j][2 + e] += high * x;
        }
      }
    }
  }

  __device__ void store() const {
    const auto store_to = [&](const Rows<T>& out, const auto& sum, float scale, int width) {
      if (out.data == nullptr) return;
      store_fragments(sum[0], scale, out.at(place.b, seq.k_begin, place.h), out.seq_stride,
                      n0 + warp_row, seq.seq_k, width);
    };
    store_to(args.dv, dv_reg, 1.0f, args.shape.value_dim);
    store_to(args.dk1, dk1_reg, args.scale, args.shape.head_dim);
    store_to(args.dk2, dk2_reg, args.scale2, args.shape.head_dim);
  }
};

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, 2)
    backward_fused_kernel(const __grid_constant__ BackwardArguments<T> args, DqSums sums,
                          int tiles) {
  extern __shared__ __align__(128) char smem[];
  __shared__ Sequence seq;
  // Causal: the first keys are seen by most rows, and come first.
  const BlockPlace place(blockIdx.x, args.shape.kv_heads, tiles);
  if (threadIdx.x == 0) seq = args.shape.sequence(place.b);
  __syncthreads();  // seq is there
  BackwardFused<T, Config>{args, smem, place, seq, sums}.run();
}

}  // namespace diffattn::cuda::sm80
