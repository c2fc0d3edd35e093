// SPDX-License-Identifier: Apache-2.0
//
// Deterministic sm80 backward, pass over queries: dq1 and dq2. A block owns kBlockM rows of one
// (batch entry, head) and visits the key tiles that any of them may see, in order:
//
//   (1) load q1, q2, dO once
//   for each key tile:
//     (2) s1 = q1 k1^T, s2 = q2 k2^T, dp = dO v^T            [kBlockM, kBlockN]
//     (3) p = exp2(scale log2(e) s + mask - lse)             lse is known: no running maximum
//     (4) ds1 = p1 (dp - delta1), ds2 = -lambda p2 (dp - delta2)
//     (5) dq1 += ds1 k1,  dq2 += ds2 k2
//   (6) store scale dq1, scale2 dq2
//
// Each warp owns 16 rows. Sums are in float, operands in T.
#pragma once

#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/sm80/backward/arguments.cuh"
#include "kernels/cuda/sm80/backward/config.h"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/sm80/visible_words.cuh"

namespace diffattn::cuda::sm80 {

template <class T, class Config>
struct BackwardQueries {
  static constexpr int kD = Config::kHeadDim, kValue = Config::kValueDim;
  static constexpr int kBlockM = Config::kBlockM, kBlockN = Config::kBlockN;
  static constexpr int kThreads = Config::kThreads, kStages = Config::kStages;

  const BackwardArguments<T>& args;
  char* smem;
  const WorkTile work;
  const Sequence seq = args.shape.sequence(work.b);
  const HeadMask mask{args.shape, seq, work.b, work.h};
  const int kv_head = args.shape.kv_head(work.h);
  const int row0 = work.tile * kBlockM;
  const int lane = threadIdx.x % kWarpSize;
  const int warp_row = threadIdx.x / kWarpSize * 16;

  T* const q_smem = reinterpret_cast<T*>(smem);          // [2, kBlockM, kD]
  T* const d_o_smem = q_smem + 2 * Config::kQElements;   // [kBlockM, kValue]
  char* const stages_smem = smem + Config::kQueryBytes;  // kStages x {k1, k2, v}

  Accumulator<1, kD / 8> dq1_reg = {}, dq2_reg = {};
  float lse1[2], lse2[2], delta1[2], delta2[2], lambda[2];  // rows g and g + 8, g = lane / 4

  __device__ void run() {
    if (row0 >= seq.seq_q) return;
    const int end_row = min(row0 + kBlockM, seq.seq_q);
    const int begin = max(0, seq.first_visible(row0)) / kBlockN * kBlockN;
    const int end = seq.end_visible(end_row - 1);
    load_rows();  // (1)
    if (begin < end) load_stage(0, begin, end);
    ptx::commit_copies();
    for (int n0 = begin, stage = 0; n0 < end; n0 += kBlockN, stage = (stage + 1) % kStages) {
      ptx::wait_copies<0>();
      // All threads' copies of this stage have arrived, and no warp reads the other stage any more.
      __syncthreads();
      if constexpr (kStages == 2) {
        if (n0 + kBlockN < end) load_stage(stage ^ 1, n0 + kBlockN, end);
        ptx::commit_copies();
      }
      accumulate(stage, n0, end_row);
      if constexpr (kStages == 1) {
        __syncthreads();  // all warps have read the stage
        if (n0 + kBlockN < end) load_stage(0, n0 + kBlockN, end);
        ptx::commit_copies();
      }
    }
    ptx::wait_copies<0>();
    store();  // (6)
  }

  __device__ void load_rows() {
    const int rows = seq.seq_q - row0;
    for (int i = 0; i < 2; ++i) {
      const Rows<const T>& q = i == 0 ? args.q1 : args.q2;
      load_tile<kBlockM, kD, kThreads>(
          q_smem + i * Config::kQElements,
          TileSource<T>{q.at(work.b, seq.q_begin + row0, work.h), q.seq_stride, 0, rows,
                        args.shape.head_dim, args.q_aligned});
    }
    load_tile<kBlockM, kValue, kThreads>(
        d_o_smem,
        TileSource<T>{args.d_o.at(work.b, seq.q_begin + row0, work.h), args.d_o.seq_stride, 0, rows,
                      args.shape.value_dim, args.d_o_aligned});
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp_row + r * 8 + lane / 4;
      const int64_t l = seq.q_begin + row0 + row;
      const auto load = [&](const Rows<float>& values) {
        return row < rows ? *values.at(work.b, l, work.h) : 0.0f;
      };
      lse1[r] = load(args.state.lse1);
      lse2[r] = load(args.state.lse2);
      delta1[r] = load(args.state.delta1);
      delta2[r] = load(args.state.delta2);
      lambda[r] = load(args.state.lambda);
    }
  }

  __device__ void load_stage(int stage, int n0, int end) {
    T* const k_smem = reinterpret_cast<T*>(stages_smem + stage * Config::kStageBytes);
    const int first = seq.first_key - n0, last = end - n0;
    for (int i = 0; i < 2; ++i) {
      const Rows<const T>& k = i == 0 ? args.k1 : args.k2;
      load_tile<kBlockN, kD, kThreads>(
          k_smem + i * Config::kKElements,
          TileSource<T>{k.at(work.b, seq.k_begin + n0, kv_head), k.seq_stride, first, last,
                        args.shape.head_dim, args.k_aligned});
    }
    load_tile<kBlockN, kValue, kThreads>(
        k_smem + 2 * Config::kKElements,
        TileSource<T>{args.v.at(work.b, seq.k_begin + n0, kv_head), args.v.seq_stride, first, last,
                      args.shape.value_dim, args.v_aligned});
  }

  __device__ void accumulate(int stage, int n0, int end_row) {
    const T* const k1_smem = reinterpret_cast<T*>(stages_smem + stage * Config::kStageBytes);
    const T* const k2_smem = k1_smem + Config::kKElements;
    const T* const v_smem = k2_smem + Config::kKElements;
    const bool all_visible = mask.all_visible(row0, end_row, n0, n0 + kBlockN);
    bool skip_zeros = false;
    if (!all_visible) {
      skip_zeros = __syncthreads_or(has_non_finite<kBlockN, kD, kThreads>(k1_smem) ||
                                    has_non_finite<kBlockN, kD, kThreads>(k2_smem)) != 0;
    }

    Accumulator<1, kBlockN / 8> s1 = {}, s2 = {}, dp = {};
    multiply_transposed<1, kBlockN, kD>(s1, q_smem, warp_row, k1_smem);  // (2)
    multiply_transposed<1, kBlockN, kD>(s2, q_smem + Config::kQElements, warp_row, k2_smem);
    multiply_transposed<1, kBlockN, kValue>(dp, d_o_smem, warp_row, v_smem);
    const bool biased = args.shape.mask.kind == MaskKind::kAdditive;
    static_assert(kBlockN == 32);  // lanes 0-15 compute the visibility words of the warp's rows
    uint32_t word = ~0u;
    if (!all_visible && !biased) word = seen_word(mask, row0 + warp_row + lane % 16, n0);
    const uint32_t seen[2] = {__shfl_sync(0xffffffffu, word, lane / 4) >> (lane % 4 * 2),
                              __shfl_sync(0xffffffffu, word, lane / 4 + 8) >> (lane % 4 * 2)};
#pragma unroll
    for (int j = 0; j < kBlockN / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = e / 2;
        float x1 = s1[0][j][e] * args.scale_log2 - lse1[r];
        float x2 = s2[0][j][e] * args.scale2_log2 - lse2[r];
        if (!all_visible && (seen[r] & (1u << (j * 8 + e % 2))) == 0) x1 = x2 = -INFINITY;
        if (!all_visible && biased) {
          const float bias =
              mask.bias(row0 + warp_row + r * 8 + lane / 4, n0 + j * 8 + lane % 4 * 2 + e % 2);
          x1 = bias == -INFINITY ? bias : x1 + bias;
          x2 = bias == -INFINITY ? bias : x2 + bias;
        }
        // (3) Bounded by 1, because a huge score can exceed its rounded lse.
        const float p1 = ptx::probability(x1), p2 = ptx::probability(x2);
        const float ds1 = p1 * (dp[0][j][e] - delta1[r]);  // (4)
        const float ds2 = -lambda[r] * p2 * (dp[0][j][e] - delta2[r]);
        // A hidden column may have dp = NaN, and 0 * NaN is NaN.
        s1[0][j][e] = all_visible || p1 != 0.0f ? ds1 : 0.0f;
        s2[0][j][e] = all_visible || p2 != 0.0f ? ds2 : 0.0f;
      }
    }
    add_product(dq1_reg, s1[0], k1_smem, skip_zeros);  // (5)
    add_product(dq2_reg, s2[0], k2_smem, skip_zeros);
  }

  /// sum [16, kD] += x [16, kBlockN] k [kBlockN, kD], with x rounded to T.
  __device__ void add_product(Accumulator<1, kD / 8>& sum, const float (&x)[kBlockN / 8][4],
                              const T* k, bool skip_zeros) const {
    uint32_t x_reg[1][kBlockN / 16][4];
    round_to_operand<T>(x_reg[0], x);
    if (skip_zeros) {
      multiply_skipping_zeros<1, kD, kBlockN>(sum, x_reg, k);
    } else {
      multiply<1, kD, kBlockN>(sum, x_reg, k);
    }
  }

  __device__ void store() {
    const auto store_to = [&](const Rows<T>& out, const Accumulator<1, kD / 8>& sum, float scale) {
      if (out.data == nullptr) return;
      store_fragments(sum[0], scale, out.at(work.b, seq.q_begin, work.h), out.seq_stride,
                      row0 + warp_row, seq.seq_q, args.shape.head_dim);
    };
    store_to(args.dq1, dq1_reg, args.scale);
    store_to(args.dq2, dq2_reg, args.scale2);
  }
};

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, 2)
    backward_queries_kernel(const __grid_constant__ BackwardArguments<T> args, int tiles) {
  extern __shared__ __align__(128) char smem[];
  WorkTile work(blockIdx.x, args.shape.heads, tiles);
  work.tile = tiles - 1 - work.tile;  // last rows first: if causal, they see the most keys
  BackwardQueries<T, Config>{args, smem, work}.run();
}

}  // namespace diffattn::cuda::sm80
