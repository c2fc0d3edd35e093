// SPDX-License-Identifier: Apache-2.0
//
// simt backward: float arithmetic without tensor cores, for problems that neither tf32 nor sm80
// supports. Two passes, each with a fixed order of summation and no atomics:
//
//   over queries: a block owns 32 rows of a (batch entry, head), visits the keys that they may see,
//                 and computes dq1, dq2 and the row factors (see row_factor)
//   over keys:    a block owns 32 keys of a (batch entry, kv head), visits the rows that may see
//                 them in all heads of the kv head, and computes dk1, dk2, dv
//
// Each step multiplies the 32 owned rows (of q or of k) with 32 rows of the other tensor:
//   (1) s1 = q1.k1, s2 = q2.k2, dp = dO.v                            [32, 32]
//   (2) p = exp2(scale log2(e) s + mask - lse), times the row factor in the pass over keys
//       ds1 = p1 (dp - delta1), ds2 = -lambda p2 (dp - delta2), both 0 in a row that sees one key
//   (3) dq1 += ds1 k1, dq2 += ds2 k2        over queries
//       dv += (p1 - lambda p2)^T dO, dk1 += ds1^T q1, dk2 += ds2^T q2        over keys
#pragma once

#include "kernels/cuda/backward/row_softmax.cuh"
#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/exp2.cuh"
#include "kernels/cuda/simt/tile.cuh"

namespace diffattn::cuda::simt {

/// Kernel arguments of the simt backward. Gradients that the caller does not want have null data.
template <class T>
struct BackwardArguments {
  Shape shape;
  Rows<const T> q1, q2, k1, k2;  // [B, M, H, D], [B, N, Hkv, D]
  Rows<const T> v;               // [B, N, Hkv, Dv]
  Rows<const T> d_o;             // [B, M, H, Dv]
  RowState state;
  RowFactors row_factors;
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
          .row_factors = workspace.row_factors,
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

/// Returns p = min(exp2(scale s + bias - lse), 1). Without a bias, one FMA subtracts lse from the
/// unrounded product.
__device__ inline float probability(float s, float scale, float bias, float lse) {
  if (bias == 0.0f) return ptx::probability(fmaf(s, scale, -lse));
  return ptx::probability(fmaf(s, scale, bias) - lse);
}

/// Returns the row factor 1 / sum, where `sum` is the sum of the row's p. The sum is not exactly 1,
/// because lse is rounded to one float: one ulp of an lse of 300 is 3e-5, and all p of the row have
/// that relative error.
///
/// Returns 1 for a row that sees no column, and for rows whose p intentionally do not sum to 1: for
/// these, row_softmax.cuh replaces lse by the row maximum. It does so if |lse| exceeds
/// kEnoughDigits, which is 1.44 kEnoughDigits in base 2. The row maximum may lie below lse by log2
/// of the number of keys, so this function compares with 1.4 kEnoughDigits.
__device__ inline float row_factor(float sum, float lse1, const Shape& shape) {
  if (shape.mask.kind == MaskKind::kAdditive && fabsf(lse1) > 1.4f * kEnoughDigits) return 1.0f;
  return sum > 0.0f ? 1.0f / sum : 1.0f;
}

/// Probabilities and gradients of one (query m, key n); all 0 if n is hidden from m.
struct PairGradient {
  float p1, p2;       // not yet multiplied by the row factors
  float a, ds1, ds2;  // p1 - lambda p2, and the gradients of both scores
};

template <class T>
struct Backward {
  const BackwardArguments<T>& args;
  float* smem;
  const int b;
  const ThreadPosition at{};
  const Sequence seq = args.shape.sequence(b);
  const int pitch = pitch_of(max(args.shape.head_dim, args.shape.value_dim));

  float* const x_smem = smem;                     // [32, pitch]: the owned rows
  float* const y_smem = x_smem + kBlock * pitch;  // [32, pitch]: the other tensor's rows
  float* const a_smem = y_smem + kBlock * pitch;  // [32, kScorePitch] each
  float* const ds1_smem = a_smem + kBlock * kScorePitch;
  float* const ds2_smem = ds1_smem + kBlock * kScorePitch;

  float sum1[2] = {0.0f, 0.0f}, sum2[2] = {0.0f, 0.0f};  // this thread's sums of p1 and p2

  __device__ void load_queries(float* tile, const Rows<const T>& rows, int h, int m0, int width) {
    load_tile(tile, rows.at(b, seq.q_begin + m0, h), rows.seq_stride, 0, seq.seq_q - m0, width,
              pitch);
  }
  __device__ void load_keys(float* tile, const Rows<const T>& rows, int g, int n0, int width) {
    load_tile(tile, rows.at(b, seq.k_begin + n0, g), rows.seq_stride, seq.first_key - n0,
              seq.end_key - n0, width, pitch);
  }

  /// Computes (1) for one pair of tensors. If `keys_own`, the block owns keys: rows of s are keys
  /// and columns are queries.
  __device__ void dots(Scores& s, bool keys_own, const Rows<const T>& queries,
                       const Rows<const T>& keys, int h, int m0, int n0, int width) {
    __syncthreads();  // all threads have read the previous tiles
    load_queries(keys_own ? y_smem : x_smem, queries, h, m0, width);
    load_keys(keys_own ? x_smem : y_smem, keys, args.shape.kv_head(h), n0, width);
    __syncthreads();  // all threads have written both tiles
    dot_rows(s, x_smem, y_smem, width, pitch);
  }

  /// Computes (1) and (2) for a tile and writes a_smem, ds1_smem and ds2_smem. Leaves dO (keys_own)
  /// or v in y_smem.
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
    __syncthreads();  // all threads have written a, ds1 and ds2
  }

  __device__ PairGradient pair_gradient(const HeadMask& mask, bool keys_own, int h, int m, int n,
                                        float s1, float s2, float dp) const {
    const float bias = mask.bias(m, n);
    if (bias == -INFINITY) return {};
    const int64_t l = seq.q_begin + m;
    const float p1 = probability(s1, args.scale_log2, bias, *args.state.lse1.at(b, l, h));
    const float p2 = probability(s2, args.scale2_log2, bias, *args.state.lse2.at(b, l, h));
    const float factor1 = keys_own ? *args.row_factors.p1.at(b, l, h) : 1.0f;
    const float weight1 = factor1 * p1;
    const float weight2 =
        *(keys_own ? args.row_factors.lambda : args.state.lambda).at(b, l, h) * p2;
    const float ds_factor = *args.row_factors.ds.at(b, l, h);
    return {p1, p2, weight1 - weight2, ds_factor * weight1 * (dp - *args.state.delta1.at(b, l, h)),
            -ds_factor * weight2 * (dp - *args.state.delta2.at(b, l, h))};
  }

  /// Stores rows of a sum, multiplied by scale[i] in row ty + 16 i.
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
          __syncthreads();                                                  // all have read dO
          load_queries(y_smem, args.q1, h, m0, width);
          load_queries(x_smem, args.q2, h, m0, width);
          __syncthreads();  // all threads have written q1 and q2
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
      __syncthreads();                                      // all threads have written k1 and k2
      accumulate(dq1_reg, ds1_smem, y_smem, width, pitch);  // (3)
      accumulate(dq2_reg, ds2_smem, x_smem, width, pitch);
    }
    float scale1[2], scale2[2];
    finish_row_factors(h, m0, scale1, scale2);
    store(args.dq1, dq1_reg, scale1, seq.q_begin, m0, seq.seq_q, h, width);
    store(args.dq2, dq2_reg, scale2, seq.q_begin, m0, seq.seq_q, h, width);
  }

  /// Computes the row factors of rows ty and ty + 16 and stores them for the pass over keys.
  /// Returns scale times the factor, for dq1 and dq2.
  __device__ void finish_row_factors(int h, int m0, float (&scale1)[2], float (&scale2)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int m = m0 + at.ty + 16 * i;
      const int64_t l = seq.q_begin + min(m, seq.seq_q - 1);
      const float lse1 = *args.state.lse1.at(b, l, h);
      const float factor1 = row_factor(row_sum(sum1[i]), lse1, args.shape);
      const float factor2 = row_factor(row_sum(sum2[i]), lse1, args.shape);
      scale1[i] = args.scale * factor1, scale2[i] = args.scale2 * factor2;
      if (m >= seq.seq_q || at.tx != 0) continue;
      *args.row_factors.p1.at(b, l, h) = factor1;
      *args.row_factors.lambda.at(b, l, h) = *args.state.lambda.at(b, l, h) * factor2;
    }
  }
};

/// Returns the bytes of shared memory per block.
inline int backward_bytes(const Shape& shape) {
  const int width = std::max(shape.head_dim, shape.value_dim);
  return 4 * kBlock * (2 * pitch_of(width) + 3 * kScorePitch);
}

}  // namespace diffattn::cuda::simt
