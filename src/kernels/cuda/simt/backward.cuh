// SPDX-License-Identifier: Apache-2.0
//
// Backward in float, for float32 and for heads too wide for the matrix kernels. The same two passes
// as the matrix kernels make, and the same order of sums, so no atomics:
//
//   over queries: a block owns 32 rows of a (batch entry, head), over the keys they may see
//   over keys: a block owns 32 keys of a (batch entry, kv head), over the group's heads and queries
//
// Each step, with rows the owned ones and columns the others:
//   (1) s1, s2, dp: dot products of rows and columns
//   (2) p = exp2(scale log2(e) s + mask - lse), over keys times its row's share;
//       ds1 = p1 (dp - delta1), ds2 = -lambda p2 (dp - delta2)
//   (3) sums of the owned rows += weights times the columns' rows
//
// The pass over queries also sums p, see share_of.
#pragma once

#include "kernels/cuda/backward/row_softmax.cuh"
#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/simt/tile.cuh"

namespace diffattn::cuda::simt {

template <class T>
struct BackwardArguments {
  Shape shape;
  Rows<const T> q1, q2, k1, k2;  // [B, M, H, D], [B, N, Hkv, D]
  Rows<const T> v;               // [B, N, Hkv, Dv]
  Rows<const T> d_o;             // [B, M, H, Dv]
  RowState state;
  RowShares shares;
  float scale, scale2, scale_log2, scale2_log2;
  Rows<T> dq1, dq2, dk1, dk2;  // [B, M, H, D], [B, N, Hkv, D]
  Rows<T> dv;                  // [B, N, Hkv, Dv]
};

template <class T>
BackwardArguments<T> backward_arguments(const BackwardParams& params,
                                        const BackwardWorkspace& workspace) {
  return {.shape = shape_of(params),
          .q1 = rows_of<const T>(params.q1),
          .q2 = rows_of<const T>(params.q2),
          .k1 = rows_of<const T>(params.k1),
          .k2 = rows_of<const T>(params.k2),
          .v = rows_of<const T>(params.v),
          .d_o = rows_of<const T>(workspace.d_o),
          .state = workspace.state,
          .shares = workspace.shares,
          .scale = static_cast<float>(params.scale),
          .scale2 = static_cast<float>(params.scale2),
          .scale_log2 = static_cast<float>(params.scale * kLog2E),
          .scale2_log2 = static_cast<float>(params.scale2 * kLog2E),
          .dq1 = rows_of<T>(params.dq1),
          .dq2 = rows_of<T>(params.dq2),
          .dk1 = rows_of<T>(params.dk1),
          .dk2 = rows_of<T>(params.dk2),
          .dv = rows_of<T>(params.dv)};
}

/// exp2(scale s + bias - lse). Without a bias the product is not rounded before lse is taken off.
__device__ inline float probability(float s, float scale, float bias, float lse) {
  if (bias == 0.0f) return ptx::probability(fmaf(s, scale, -lse));
  return ptx::probability(fmaf(s, scale, bias) - lse);
}

/// What p of a row must be multiplied by for their sum, which is `sum`, to be 1. It is not, since
/// lse is one float: of a lse of 300 the last place is 3e-5, which all p of the row are then off
/// by, relatively. Rows whose p the pass over rows gave another sum on purpose keep it (`lse1`: of
/// map 1, for the shares of both), and so do rows of nothing. Those rows have an lse beyond
/// kEnoughDigits, which is 1.44 times that in base 2, as here; what is kept of them is less by the
/// logarithm of their keys' number.
__device__ inline float share_of(float sum, float lse1, const Shape& shape) {
  if (shape.mask.kind == MaskKind::kAdditive && fabsf(lse1) > 1.4f * kEnoughDigits) return 1.0f;
  return sum > 0.0f ? 1.0f / sum : 1.0f;
}

/// Gradients of one pair (m, n).
struct PairGradient {
  float p1, p2;       // before their shares
  float a, ds1, ds2;  // p1 - lambda p2, and of both scores; 0 where m may not see n
};

template <class T>
struct Backward {
  const BackwardArguments<T>& args;
  float* smem;
  const int b;
  const ThreadPlace at{};
  const Sequence seq = args.shape.sequence(b);
  const int pitch = pitch_of(max(args.shape.head_dim, args.shape.value_dim));

  float* const x_smem = smem;                     // [32, pitch]: the owned rows
  float* const y_smem = x_smem + kBlock * pitch;  // [32, pitch]: the others
  float* const a_smem = y_smem + kBlock * pitch;  // [32, kScorePitch] each
  float* const ds1_smem = a_smem + kBlock * kScorePitch;
  float* const ds2_smem = ds1_smem + kBlock * kScorePitch;

  float sum1[2] = {0.0f, 0.0f}, sum2[2] = {0.0f, 0.0f};  // of p1 and p2 here, rows ty + 16 i

  __device__ void load_queries(float* tile, const Rows<const T>& rows, int h, int m0, int width) {
    load_tile(tile, rows.at(b, seq.q_begin + m0, h), rows.seq_stride, 0, seq.seq_q - m0, width,
              pitch);
  }
  __device__ void load_keys(float* tile, const Rows<const T>& rows, int g, int n0, int width) {
    load_tile(tile, rows.at(b, seq.k_begin + n0, g), rows.seq_stride, seq.first_key - n0,
              seq.end_key - n0, width, pitch);
  }

  /// (1) of one pair of tensors; `keys_own`: rows of the result are keys, columns queries.
  __device__ void dots(Scores& s, bool keys_own, const Rows<const T>& queries,
                       const Rows<const T>& keys, int h, int m0, int n0, int width) {
    __syncthreads();  // nobody reads the tiles of the step before
    load_queries(keys_own ? y_smem : x_smem, queries, h, m0, width);
    load_keys(keys_own ? x_smem : y_smem, keys, args.shape.kv_head(h), n0, width);
    __syncthreads();  // both tiles are there
    dot_rows(s, x_smem, y_smem, width, pitch);
  }

  /// (1) and (2) of a whole tile, to a_smem, ds1_smem and ds2_smem. y_smem ends with dO or v.
  __device__ void gradients(bool keys_own, int h, int m0, int n0) {
    const HeadMask mask{args.shape, seq, b, h};
    Scores s1, s2, dp;
    dots(s1, keys_own, args.q1, args.k1, h, m0, n0, args.shape.head_dim);
    dots(s2, keys_own, args.q2, args.k2, h, m0, n0, args.shape.head_dim);
    dots(dp, keys_own, args.d_o, args.v, h, m0, n0, args.shape.value_dim);
    Scores a, ds1, ds2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = at.ty + 16 * i, column = at.tx + 16 * j;
        const PairGradient pair =
            pair_gradient(mask, keys_own, h, m0 + (keys_own ? column : row),
                          n0 + (keys_own ? row : column), s1[i][j], s2[i][j], dp[i][j]);
        sum1[i] += pair.p1, sum2[i] += pair.p2;
        a[i][j] = pair.a, ds1[i][j] = pair.ds1, ds2[i][j] = pair.ds2;
      }
    }
    store_scores(a_smem, a);
    store_scores(ds1_smem, ds1);
    store_scores(ds2_smem, ds2);
    __syncthreads();  // the weights are there
  }

  __device__ PairGradient pair_gradient(const HeadMask& mask, bool keys_own, int h, int m, int n,
                                        float s1, float s2, float dp) const {
    const float bias = mask.bias(m, n);
    if (bias == -INFINITY) return {};
    const int64_t l = seq.q_begin + m;
    const float p1 = probability(s1, args.scale_log2, bias, *args.state.lse1.at(b, l, h));
    const float p2 = probability(s2, args.scale2_log2, bias, *args.state.lse2.at(b, l, h));
    const float share1 = keys_own ? *args.shares.p1.at(b, l, h) : 1.0f;
    const float weight1 = share1 * p1;
    const float weight2 = *(keys_own ? args.shares.lambda : args.state.lambda).at(b, l, h) * p2;
    return {p1, p2, weight1 - weight2, weight1 * (dp - *args.state.delta1.at(b, l, h)),
            -weight2 * (dp - *args.state.delta2.at(b, l, h))};
  }

  /// scale: of rows ty and ty + 16.
  __device__ void store(const Rows<T>& out, Wide& sum, const float (&scale)[2], int64_t begin,
                        int row0, int end_row, int h, int width) const {
    if (out.data == nullptr) return;
    for_each_column(sum, width, [&](int i, int column, float x) {
      const int row = row0 + at.ty + 16 * i;
      if (row < end_row) out.at(b, begin + row, h)[column] = narrow<T>(x * scale[i]);
    });
  }

  __device__ void run_keys(int g, int tile) {
    const int n0 = tile * kBlock;
    if (n0 >= seq.seq_k) return;
    const int first_key = max(n0, seq.first_key), end_key = min(n0 + kBlock, seq.end_key);
    const int group = args.shape.heads / args.shape.kv_heads;
    const int width = args.shape.head_dim;
    Wide dv_reg = {}, dk1_reg = {}, dk2_reg = {};
    if (first_key < end_key) {
      const int begin = seq.first_row(first_key), end = seq.end_row(end_key - 1);
      for (int h = g * group; h < (g + 1) * group; ++h) {
        for (int m0 = begin; m0 < end; m0 += kBlock) {
          gradients(true, h, m0, n0);                                       // (1) (2)
          accumulate(dv_reg, a_smem, y_smem, args.shape.value_dim, pitch);  // (3)
          __syncthreads();                                                  // dO was used
          load_queries(y_smem, args.q1, h, m0, width);
          load_queries(x_smem, args.q2, h, m0, width);
          __syncthreads();  // q1, q2 are there
          accumulate(dk1_reg, ds1_smem, y_smem, width, pitch);
          accumulate(dk2_reg, ds2_smem, x_smem, width, pitch);
        }
      }
    }
    const float scale1[2] = {args.scale, args.scale}, scale2[2] = {args.scale2, args.scale2};
    store(args.dv, dv_reg, {1.0f, 1.0f}, seq.k_begin, n0, seq.seq_k, g, args.shape.value_dim);
    store(args.dk1, dk1_reg, scale1, seq.k_begin, n0, seq.seq_k, g, width);
    store(args.dk2, dk2_reg, scale2, seq.k_begin, n0, seq.seq_k, g, width);
  }

  __device__ void run_queries(int h, int tile) {
    const int m0 = tile * kBlock;
    if (m0 >= seq.seq_q) return;
    const int begin = max(0, seq.first_visible(m0)) / kBlock * kBlock;
    const int end = seq.end_visible(min(m0 + kBlock, seq.seq_q) - 1);
    const int g = args.shape.kv_head(h), width = args.shape.head_dim;
    Wide dq1_reg = {}, dq2_reg = {};
    for (int n0 = begin; n0 < end; n0 += kBlock) {
      gradients(false, h, m0, n0);  // (1) (2)
      load_keys(y_smem, args.k1, g, n0, width);
      load_keys(x_smem, args.k2, g, n0, width);
      __syncthreads();                                      // k1, k2 are there
      accumulate(dq1_reg, ds1_smem, y_smem, width, pitch);  // (3)
      accumulate(dq2_reg, ds2_smem, x_smem, width, pitch);
    }
    float scale1[2], scale2[2];
    finish_shares(h, m0, scale1, scale2);
    store(args.dq1, dq1_reg, scale1, seq.q_begin, m0, seq.seq_q, h, width);
    store(args.dq2, dq2_reg, scale2, seq.q_begin, m0, seq.seq_q, h, width);
  }

  /// Shares of rows ty and ty + 16, kept for the pass over keys, and the scales of their dq.
  __device__ void finish_shares(int h, int m0, float (&scale1)[2], float (&scale2)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int m = m0 + at.ty + 16 * i;
      const int64_t l = seq.q_begin + min(m, seq.seq_q - 1);
      const float lse1 = *args.state.lse1.at(b, l, h);
      const float share1 = share_of(row_sum(sum1[i]), lse1, args.shape);
      const float share2 = share_of(row_sum(sum2[i]), lse1, args.shape);
      scale1[i] = args.scale * share1, scale2[i] = args.scale2 * share2;
      if (m >= seq.seq_q || at.tx != 0) continue;
      *args.shares.p1.at(b, l, h) = share1;
      *args.shares.lambda.at(b, l, h) = *args.state.lambda.at(b, l, h) * share2;
    }
  }
};

/// Bytes of shared memory that a block takes.
inline int backward_bytes(const Shape& shape) {
  const int width = std::max(shape.head_dim, shape.value_dim);
  return 4 * kBlock * (2 * pitch_of(width) + 3 * kScorePitch);
}

}  // namespace diffattn::cuda::simt
