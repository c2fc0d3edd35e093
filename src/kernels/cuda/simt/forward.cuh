// SPDX-License-Identifier: Apache-2.0
//
// simt forward: float arithmetic without tensor cores, for problems that neither tf32 nor sm80
// supports. A block of 256 threads computes 32 rows of one (batch entry, head). Each thread
// computes the rows and columns that tile.cuh assigns to it, for both maps:
//
//   for each key tile that any row may see:
//     (1) s1 = q1 k1^T, s2 = q2 k2^T, times scale log2(e), + mask       [32, 32]
//     (2) rescale m, l, o1, o2;  p = exp2(s - m)                        online softmax, base 2
//     (3) o1 += p1 v, o2 += p2 v                                        [32, Dv]
//   (4) lse = m ln 2 + log l;  O = o1 / l1 - lambda o2 / l2;  out = epilogue(O)
#pragma once

#include "kernels/cuda/dispatch/forward.h"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/simt/tile.cuh"

namespace diffattn::cuda::simt {

/// Kernel arguments of the simt forward. Optional outputs have null data.
template <class T>
struct ForwardArguments {
  Shape shape;
  Rows<const T> q1, q2, k1, k2;   // [B, M, H, D], [B, N, Hkv, D]
  Rows<const T> v;                // [B, N, Hkv, Dv]
  Rows<const float> lambda;       // [B, M, H]
  float scale_log2, scale2_log2;  // scale log2(e) of map 1 and map 2
  HeadEpilogue epilogue;
  Rows<T> out, o, o2;             // [B, M, H, Dv]: result, O before the epilogue, softmax2 v
  Rows<int8_t> o_rest, o2_rest;   // [B, M, H, Dv]: rounding errors of o and o2, see rest.cuh
  Rows<float> lse1, lse2;         // [B, M, H]: log-sum-exp, natural logarithm
  Rows<float> o_exact, o2_exact;  // [B, M, H, Dv]: o and o2 in float
};

template <class T>
ForwardArguments<T> forward_arguments(const ForwardParams& params, const ExactOutputs& exact) {
  return {.shape = shape_of(params),
          .q1 = rows_of<const T>(params.q1),
          .q2 = rows_of<const T>(params.q2),
          .k1 = rows_of<const T>(params.k1),
          .k2 = rows_of<const T>(params.k2),
          .v = rows_of<const T>(params.v),
          .lambda = rows_of<const float>(params.lambda),
          .scale_log2 = static_cast<float>(params.scale * kLog2E),
          .scale2_log2 = static_cast<float>(params.scale2 * kLog2E),
          .epilogue = epilogue_of(params.epilogue),
          .out = rows_of<T>(params.out),
          .o = rows_of<T>(params.o),
          .o2 = rows_of<T>(params.o2),
          .o_rest = rows_of<int8_t>(params.o_rest),
          .o2_rest = rows_of<int8_t>(params.o2_rest),
          .lse1 = rows_of<float>(params.lse1),
          .lse2 = rows_of<float>(params.lse2),
          .o_exact = rows_of<float>(exact.o),
          .o2_exact = rows_of<float>(exact.o2)};
}

/// Magnitude (2^20) from which on the kernels do not correct a score's rounding error. One ulp is
/// then 1/8 or more, and the correction of an infinite score would be NaN.
inline constexpr float kLargeScore = 1048576.0f;

/// Softmax state of one map for rows ty and ty + 16: row maximum m (base 2) and row sum l. Until
/// the loop ends, l covers this thread's columns only.
struct Softmax {
  float m[2] = {-INFINITY, -INFINITY};
  float l[2] = {0.0f, 0.0f};
};

template <class T>
struct Forward {
  const ForwardArguments<T>& args;
  float* smem;
  const WorkTile work;
  const ThreadPosition at{};
  const Sequence seq = args.shape.sequence(work.b);
  const HeadMask mask{args.shape, seq, work.b, work.h};
  const int kv_head = args.shape.kv_head(work.h);
  const int row0 = work.tile * kBlock;
  const int pitch = pitch_of(max(args.shape.head_dim, args.shape.value_dim));

  float* const x_smem = smem;                      // [32, pitch]: q
  float* const y_smem = x_smem + kBlock * pitch;   // [32, pitch]: k, v
  float* const p1_smem = y_smem + kBlock * pitch;  // [32, kScorePitch]
  float* const p2_smem = p1_smem + kBlock * kScorePitch;

  Wide o1_reg = {}, o2_reg = {};
  Softmax state1, state2;

  __device__ void run() {
    if (row0 >= seq.seq_q) return;
    const int end_row = min(row0 + kBlock, seq.seq_q);
    const int begin = max(0, seq.first_visible(row0)) / kBlock * kBlock;
    const int end = seq.end_visible(end_row - 1);
    for (int n0 = begin; n0 < end; n0 += kBlock) {
      Scores s1, s2, rest1, rest2;
      scores(s1, rest1, args.q1, args.k1, n0, args.scale_log2);  // (1)
      scores(s2, rest2, args.q2, args.k2, n0, args.scale2_log2);
      update(state1, s1, rest1, o1_reg);  // (2)
      update(state2, s2, rest2, o2_reg);
      store_scores(p1_smem, s1);
      store_scores(p2_smem, s2);
      load_keys(args.v, n0, args.shape.value_dim);
      __syncthreads();  // all threads have written v, p1 and p2
      accumulate(o1_reg, p1_smem, y_smem, args.shape.value_dim, pitch);  // (3)
      accumulate(o2_reg, p2_smem, y_smem, args.shape.value_dim, pitch);
      __syncthreads();  // all threads have read v, p1 and p2
    }
    for (int i = 0; i < 2; ++i) {
      state1.l[i] = row_sum(state1.l[i]);
      state2.l[i] = row_sum(state2.l[i]);
    }
    finish();  // (4)
  }

  __device__ void load_keys(const Rows<const T>& rows, int n0, int width) {
    load_tile(y_smem, rows.at(work.b, seq.k_begin + n0, kv_head), rows.seq_stride,
              seq.first_key - n0, seq.end_key - n0, width, pitch);
  }

  /// Computes (1) for one map. `rest` receives the rounding error of each score. Rounding changes a
  /// score of 16 by up to 1e-6, and its probability by the same relative amount. After step (2) has
  /// subtracted the row maximum, the score is small, and adding `rest` restores the lost digits.
  __device__ void scores(Scores& s, Scores& rest, const Rows<const T>& q, const Rows<const T>& k,
                         int n0, float scale) {
    const int width = args.shape.head_dim;
    load_tile(x_smem, q.at(work.b, seq.q_begin + row0, work.h), q.seq_stride, 0, seq.seq_q - row0,
              width, pitch);
    load_keys(k, n0, width);
    __syncthreads();  // all threads have written q and k
    dot_rows(s, x_smem, y_smem, width, pitch);
    __syncthreads();  // all threads have read q and k
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float bias = mask.bias(row0 + at.ty + 16 * i, n0 + at.tx + 16 * j);
        const float product = s[i][j] * scale, score = product + bias;
        const float lost = fmaf(s[i][j], scale, -product) + (bias - (score - product));
        rest[i][j] = fabsf(score) < kLargeScore ? lost : 0.0f;
        s[i][j] = score;
        if (bias == -INFINITY) s[i][j] = -INFINITY, rest[i][j] = 0.0f;  // overwrites a NaN, too
      }
    }
  }

  /// Computes (2) for one map: replaces the scores by p.
  __device__ static void update(Softmax& state, Scores& s, const Scores& rest, Wide& o) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float m_new = fmaxf(state.m[i], row_max(fmaxf(s[i][0], s[i][1])));
      // A row that has seen no column has m = -inf, and -inf - (-inf) is NaN.
      const float m_finite = m_new == -INFINITY ? 0.0f : m_new;
      const float rescale = ptx::exp2(state.m[i] - m_finite);
      state.m[i] = m_new;
#pragma unroll
      for (int j = 0; j < 2; ++j) s[i][j] = ptx::exp2(s[i][j] - m_finite + rest[i][j]);
      state.l[i] = state.l[i] * rescale + s[i][0] + s[i][1];
#pragma unroll
      for (int c = 0; c < kMaxWidth / 64; ++c) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[i][c][e] *= rescale;
      }
    }
  }

  __device__ void finish() {
    const int width = args.shape.value_dim;
    float squares[2] = {0.0f, 0.0f}, inverse1[2], inverse2[2], lambda[2];
    bool exists[2], dead[2];
    for (int i = 0; i < 2; ++i) {
      const int m = row0 + at.ty + 16 * i;
      exists[i] = m < seq.seq_q;
      dead[i] = state1.l[i] == 0.0f;
      inverse1[i] = dead[i] ? 0.0f : 1.0f / state1.l[i];
      inverse2[i] = dead[i] ? 0.0f : 1.0f / state2.l[i];
      lambda[i] = exists[i] && !dead[i] ? *args.lambda.at(work.b, seq.q_begin + m, work.h) : 0.0f;
      if (exists[i] && at.tx == 0 && args.lse1.data != nullptr) {
        *args.lse1.at(work.b, seq.q_begin + m, work.h) = state1.m[i] * kLn2 + logf(state1.l[i]);
        *args.lse2.at(work.b, seq.q_begin + m, work.h) = state2.m[i] * kLn2 + logf(state2.l[i]);
      }
    }
    for_each_column(o2_reg, width, [&](int i, int, float& x) { x *= inverse2[i]; });
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int c = 0; c < kMaxWidth / 64; ++c) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          o1_reg[i][c][e] = o1_reg[i][c][e] * inverse1[i] - lambda[i] * o2_reg[i][c][e];
        }
      }
    }
    for_each_column(o1_reg, width, [&](int i, int, float x) { squares[i] += x * x; });
    float rstd[2] = {1.0f, 1.0f};
    for (int i = 0; i < 2; ++i) {
      const float mean = row_sum(squares[i]) / width;
      if (args.epilogue.norm) rstd[i] = 1.0f / sqrtf(mean + args.epilogue.eps);
    }
    store_rows(args.out, o1_reg, exists, [&](int i, int column, float x) {
      return dead[i] ? 0.0f : x * rstd[i] * args.epilogue.gain(column);
    });
    const auto unchanged = [](int, int, float x) { return x; };
    if (args.o.data != nullptr) store_rows(args.o, o1_reg, exists, unchanged);
    if (args.o2.data != nullptr) store_rows(args.o2, o2_reg, exists, unchanged);
    if constexpr (sizeof(T) == 2) {
      if (args.o_rest.data != nullptr) store_rests(args.o_rest, o1_reg, exists);
      if (args.o2_rest.data != nullptr) store_rests(args.o2_rest, o2_reg, exists);
    }
    if (args.o_exact.data != nullptr) store_rows(args.o_exact, o1_reg, exists, unchanged);
    if (args.o2_exact.data != nullptr) store_rows(args.o2_exact, o2_reg, exists, unchanged);
  }

  __device__ void store_rests(const Rows<int8_t>& out, Wide& o, const bool (&exists)[2]) {
    for_each_column(o, args.shape.value_dim, [&](int i, int column, float x) {
      const int64_t l = seq.q_begin + row0 + at.ty + 16 * i;
      if (!exists[i]) return;
      out.at(work.b, l, work.h)[column] = static_cast<int8_t>(rest_of(x, narrow<T>(x)));
    });
  }

  template <class U, class F>
  __device__ void store_rows(const Rows<U>& out, Wide& o, const bool (&exists)[2], F f) {
    U* const rows[2] = {out.at(work.b, seq.q_begin + row0 + at.ty, work.h),
                        out.at(work.b, seq.q_begin + row0 + at.ty + 16, work.h)};
    for_each_column(o, args.shape.value_dim, [&](int i, int column, float x) {
      if (exists[i]) rows[i][column] = narrow<U>(f(i, column, x));
    });
  }
};

/// Returns the bytes of shared memory per block.
inline int forward_bytes(const Shape& shape) {
  return 4 * 2 * kBlock * (pitch_of(std::max(shape.head_dim, shape.value_dim)) + kScorePitch);
}

}  // namespace diffattn::cuda::simt
