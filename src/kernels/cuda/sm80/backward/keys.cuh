// SPDX-License-Identifier: Apache-2.0
//
// Deterministic sm80 backward, pass over keys: dk1, dk2 and dv. A block owns kBlockN keys of one
// (batch entry, kv head). It visits the query rows of all heads of the kv head ("the group") in a
// fixed order, so that sums need no atomics:
//
//   (1) load k1, k2, v once
//   for each head of the group, for each query tile that sees any of these keys:
//     (2) s1 = k1 q1^T, s2 = k2 q2^T                       transposed: [keys, queries]
//     (3) p = exp2(scale log2(e) s + mask - lse)           lse is known: no running maximum
//     (4) dv += (p1 - lambda p2) dO
//     (5) dp = v dO^T;  ds1 = p1 (dp - delta1), ds2 = -lambda p2 (dp - delta2)
//     (6) dk1 += ds1 q1,  dk2 += ds2 q2
//   (7) store dv, scale dk1, scale2 dk2
//
// Each warp owns 16 keys. Its p and ds stay in its registers as operands of the next product. Sums
// are in float, operands in T. For wide heads, one launch computes dv (Config::kOutputs = kDv) and
// a second one dk.
#pragma once

#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/sm80/backward/arguments.cuh"
#include "kernels/cuda/sm80/backward/config.h"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/sm80/visible_words.cuh"

namespace diffattn::cuda::sm80 {

template <class T, class Config>
struct BackwardKeys {
  static constexpr int kD = Config::kHeadDim, kValue = Config::kValueDim;
  static constexpr int kBlockM = Config::kBlockM, kBlockN = Config::kBlockN;
  static constexpr int kThreads = Config::kThreads, kStages = Config::kStages;
  static constexpr bool kWantDv = (Config::kOutputs & kDv) != 0;
  static constexpr bool kWantDk = (Config::kOutputs & kDk) != 0;

  const BackwardArguments<T>& args;
  char* smem;
  const WorkTile work;  // h: kv head
  const Sequence seq = args.shape.sequence(work.b);
  const int group = args.shape.heads / args.shape.kv_heads;
  const int n0 = work.tile * kBlockN;
  const int lane = threadIdx.x % kWarpSize;
  const int warp_row = threadIdx.x / kWarpSize * 16;

  T* const k_smem = reinterpret_cast<T*>(smem);        // [2, kBlockN, kD]
  T* const v_smem = k_smem + 2 * Config::kKElements;   // [kBlockN, kValue], only for dk
  char* const stages_smem = smem + Config::kKeyBytes;  // kStages x {q1, q2, dO, stats}

  Accumulator<1, kWantDv ? kValue / 8 : 1> dv_reg = {};
  Accumulator<1, kWantDk ? kD / 8 : 1> dk1_reg = {}, dk2_reg = {};

  __device__ void run() {
    if (n0 >= seq.seq_k) return;
    const int first_key = max(n0, seq.first_key), end_key = min(n0 + kBlockN, seq.end_key);
    int begin = 0, tiles = 0;  // first row and number of query tiles that see any of these keys
    if (first_key < end_key) {
      begin = seq.first_row(first_key) / kBlockM * kBlockM;
      tiles = max(0, (seq.end_row(end_key - 1) - begin + kBlockM - 1) / kBlockM);
    }
    load_keys();  // (1)
    const int steps = tiles * group;
    if (steps > 0) load_stage(0, 0, begin, tiles);
    ptx::commit_copies();
    for (int step = 0; step < steps; ++step) {
      ptx::wait_copies<0>();
      // All threads' copies of this stage have arrived, and no warp reads the other stage any more.
      __syncthreads();
      if constexpr (kStages == 2) {
        if (step + 1 < steps) load_stage((step + 1) % 2, step + 1, begin, tiles);
        ptx::commit_copies();
      }
      accumulate(step % kStages, step, begin, tiles);
      if constexpr (kStages == 1) {
        __syncthreads();  // all warps have read the stage
        if (step + 1 < steps) load_stage(0, step + 1, begin, tiles);
        ptx::commit_copies();
      }
    }
    ptx::wait_copies<0>();
    store();  // (7)
  }

  __device__ void load_keys() {
    const int first = seq.first_key - n0, last = seq.end_key - n0;
    for (int i = 0; i < 2; ++i) {
      const Rows<const T>& k = i == 0 ? args.k1 : args.k2;
      load_tile<kBlockN, kD, kThreads>(
          k_smem + i * Config::kKElements,
          TileSource<T>{k.at(work.b, seq.k_begin + n0, work.h), k.seq_stride, first, last,
                        args.shape.head_dim, args.k_aligned});
    }
    if constexpr (kWantDk) {
      load_tile<kBlockN, kValue, kThreads>(
          v_smem, TileSource<T>{args.v.at(work.b, seq.k_begin + n0, work.h), args.v.seq_stride,
                                first, last, args.shape.value_dim, args.v_aligned});
    }
  }

  __device__ int head_of(int step, int tiles) const { return work.h * group + step / tiles; }

  __device__ T* q_smem(int stage) const {
    return reinterpret_cast<T*>(stages_smem + stage * Config::kStageBytes);
  }
  __device__ T* d_o_smem(int stage) const { return q_smem(stage) + 2 * Config::kQElements; }
  __device__ float* stats_smem(int stage) const {
    return reinterpret_cast<float*>(d_o_smem(stage) + kBlockM * kValue);
  }

  /// Starts loading a query tile. Rows past the end become 0: with dO = delta = 0 they add nothing,
  /// whatever p is.
  __device__ void load_stage(int stage, int step, int begin, int tiles) {
    const int h = head_of(step, tiles), m0 = begin + step % tiles * kBlockM;
    const int rows = seq.seq_q - m0;
    for (int i = 0; i < 2; ++i) {
      const Rows<const T>& q = i == 0 ? args.q1 : args.q2;
      load_tile<kBlockM, kD, kThreads>(
          q_smem(stage) + i * Config::kQElements,
          TileSource<T>{q.at(work.b, seq.q_begin + m0, h), q.seq_stride, 0, rows,
                        args.shape.head_dim, args.q_aligned});
    }
    load_tile<kBlockM, kValue, kThreads>(
        d_o_smem(stage),
        TileSource<T>{args.d_o.at(work.b, seq.q_begin + m0, h), args.d_o.seq_stride, 0, rows,
                      args.shape.value_dim, args.d_o_aligned});
    if (threadIdx.x < kBlockM) {
      const bool valid = static_cast<int>(threadIdx.x) < rows;
      const int64_t l = seq.q_begin + m0 + (valid ? threadIdx.x : 0);
      const uint32_t to = ptx::smem_address(stats_smem(stage) + threadIdx.x);
      const auto copy = [&](int slot, const Rows<float>& values) {
        ptx::copy_4_or_zero(to + slot * kBlockM * 4, values.at(work.b, l, h), valid);
      };
      copy(0, args.state.lse1);
      copy(1, args.state.lse2);
      copy(2, args.state.delta1);
      copy(3, args.state.delta2);
      copy(4, args.state.lambda);
    }
  }

  __device__ void accumulate(int stage, int step, int begin, int tiles) {
    const int m0 = begin + step % tiles * kBlockM;
    const T* const q1_smem = q_smem(stage);
    const T* const q2_smem = q1_smem + Config::kQElements;
    const T* const dout_smem = d_o_smem(stage);
    const float* const stats = stats_smem(stage);
    const HeadMask mask{args.shape, seq, work.b, head_of(step, tiles)};
    const bool all_visible = mask.all_visible(m0, min(m0 + kBlockM, seq.seq_q), n0, n0 + kBlockN);
    bool skip_zeros = false;
    if (!all_visible) {
      skip_zeros = __syncthreads_or(has_non_finite<kBlockM, kD, kThreads>(q1_smem) ||
                                    has_non_finite<kBlockM, kD, kThreads>(q2_smem) ||
                                    has_non_finite<kBlockM, kValue, kThreads>(dout_smem)) != 0;
    }

    Accumulator<1, kBlockM / 8> s1 = {}, s2 = {};
    multiply_transposed<1, kBlockM, kD>(s1, k_smem, warp_row, q1_smem);  // (2)
    multiply_transposed<1, kBlockM, kD>(s2, k_smem + Config::kKElements, warp_row, q2_smem);
    probabilities(s1[0], s2[0], stats, mask, m0, all_visible);  // (3)
    if constexpr (kWantDv) {
      Accumulator<1, kBlockM / 8> a;
      for_each_entry([&](int j, int e, int column) {
        a[0][j][e] = s1[0][j][e] - stats[4 * kBlockM + column] * s2[0][j][e];
      });
      add_product<kValue>(dv_reg, a[0], dout_smem, skip_zeros);  // (4)
    }
    if constexpr (kWantDk) {
      Accumulator<1, kBlockM / 8> dp = {};
      multiply_transposed<1, kBlockM, kValue>(dp, v_smem, warp_row, dout_smem);  // (5)
      for_each_entry([&](int j, int e, int column) {
        const float p1 = s1[0][j][e], p2 = s2[0][j][e], x = dp[0][j][e];
        const float ds1 = p1 * (x - stats[2 * kBlockM + column]);
        const float ds2 = -stats[4 * kBlockM + column] * p2 * (x - stats[3 * kBlockM + column]);
        // A hidden entry may have dp = NaN, and 0 * NaN is NaN.
        s1[0][j][e] = all_visible || p1 != 0.0f ? ds1 : 0.0f;
        s2[0][j][e] = all_visible || p2 != 0.0f ? ds2 : 0.0f;
      });
      add_product<kD>(dk1_reg, s1[0], q1_smem, skip_zeros);  // (6)
      add_product<kD>(dk2_reg, s2[0], q2_smem, skip_zeros);
    }
  }

  /// Calls body(j, e, column) for each entry e of fragment j; `column` is its query within the
  /// tile.
  template <class Body>
  __device__ void for_each_entry(Body body) const {
#pragma unroll
    for (int j = 0; j < kBlockM / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) body(j, e, j * 8 + lane % 4 * 2 + e % 2);
    }
  }

  /// Replaces the scores of both maps by p = min(exp2(scale log2(e) s + mask - lse), 1). A very
  /// large score can exceed its rounded lse by much; the bound of 1 limits the error.
  __device__ void probabilities(float (&s1)[kBlockM / 8][4], float (&s2)[kBlockM / 8][4],
                                const float* stats, const HeadMask& mask, int m0,
                                bool all_visible) const {
    for_each_entry([&](int j, int e, int column) {
      s1[j][e] = s1[j][e] * args.scale_log2 - stats[column];
      s2[j][e] = s2[j][e] * args.scale2_log2 - stats[kBlockM + column];
    });
    const bool biased = args.shape.mask.kind == MaskKind::kAdditive;
    if (!all_visible && !biased) {
      // Each lane computes the visibility word of one query. Its low 16 bits are the warp's keys.
      static_assert(kBlockM == 32);
      const uint32_t word = seen_word(mask, m0 + lane, n0 + warp_row);
#pragma unroll
      for (int j = 0; j < kBlockM / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t seen =
              __shfl_sync(0xffffffffu, word, j * 8 + lane % 4 * 2 + i) >> (lane / 4);
          if ((seen & 1) == 0) s1[j][i] = s2[j][i] = -INFINITY;
          if ((seen & 256) == 0) s1[j][i + 2] = s2[j][i + 2] = -INFINITY;
        }
      }
    }
    if (!all_visible && biased) {
      for_each_entry([&](int j, int e, int column) {
        const float bias = mask.bias(m0 + column, n0 + warp_row + lane / 4 + e / 2 * 8);
        s1[j][e] = bias == -INFINITY ? bias : s1[j][e] + bias;
        s2[j][e] = bias == -INFINITY ? bias : s2[j][e] + bias;
      });
    }
    for_each_entry([&](int j, int e, int) {
      s1[j][e] = ptx::probability(s1[j][e]);
      s2[j][e] = ptx::probability(s2[j][e]);
    });
  }

  /// Computes sum [16, kCols] += x [16, kBlockM] b [kBlockM, kCols], with x rounded to T.
  template <int kCols>
  __device__ void add_product(Accumulator<1, kCols / 8>& sum, const float (&x)[kBlockM / 8][4],
                              const T* b, bool skip_zeros) const {
    uint32_t x_reg[1][kBlockM / 16][4];
    round_to_operand<T>(x_reg[0], x);
    if (skip_zeros) {
      multiply_skipping_zeros<1, kCols, kBlockM>(sum, x_reg, b);
    } else {
      multiply<1, kCols, kBlockM>(sum, x_reg, b);
    }
  }

  __device__ void store() {
    const int row = n0 + warp_row;
    const auto store_to = [&](const Rows<T>& out, const auto& sum, float scale, int width) {
      if (out.data == nullptr) return;
      store_fragments(sum[0], scale, out.at(work.b, seq.k_begin, work.h), out.seq_stride, row,
                      seq.seq_k, width);
    };
    if constexpr (kWantDv) store_to(args.dv, dv_reg, 1.0f, args.shape.value_dim);
    if constexpr (kWantDk) store_to(args.dk1, dk1_reg, args.scale, args.shape.head_dim);
    if constexpr (kWantDk) store_to(args.dk2, dk2_reg, args.scale2, args.shape.head_dim);
  }
};

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, 2)
    backward_keys_kernel(const __grid_constant__ BackwardArguments<T> args, int tiles) {
  extern __shared__ __align__(128) char smem[];
  // The grid starts with tile 0: under a causal mask, more rows see it than any other tile.
  BackwardKeys<T, Config>{args, smem, WorkTile(blockIdx.x, args.shape.kv_heads, tiles)}.run();
}

}  // namespace diffattn::cuda::sm80
