// SPDX-License-Identifier: Apache-2.0
//
// What the backward kernels for float32 share.
#pragma once

#include "kernels/cuda/check.h"
#include "kernels/cuda/simt/backward.cuh"
#include "kernels/cuda/tf32/tile.cuh"

namespace diffattn::cuda::tf32 {

using simt::BackwardArguments;

struct Aligned {
  bool queries, keys;    // q1, q2, dO and k1, k2, v: 16-byte loads are allowed
  bool dqueries, dkeys;  // dq1, dq2 and dk1, dk2, dv: 16-byte stores are
};

inline Aligned alignment_of(const BackwardParams& params, const BackwardWorkspace& workspace) {
  return {
      .queries =
          has_rows_of_4(params.q1) && has_rows_of_4(params.q2) && has_rows_of_4(workspace.d_o),
      .keys = has_rows_of_4(params.k1) && has_rows_of_4(params.k2) && has_rows_of_4(params.v),
      .dqueries = has_rows_of_4(params.dq1) && has_rows_of_4(params.dq2),
      .dkeys = has_rows_of_4(params.dk1) && has_rows_of_4(params.dk2) && has_rows_of_4(params.dv)};
}

/// What a row of queries has beside q and dO.
struct RowStats {
  float lse1, lse2, delta1, delta2, lambda;
};
inline constexpr int kStats = 5;
using ColumnStats = float[kStats][kColumns];

/// Fills `stats` for 32 queries from m0 of head h, asynchronously.
__device__ inline void load_stats_of_columns(ColumnStats& stats, const RowState& state,
                                             const BlockFacts& block, int h, int m0) {
  const int thread = ptx::reread_thread(), which = thread / kColumns, m = m0 + thread % kColumns;
  if (which >= kStats) return;
  const Rows<float>& rows = which == 0   ? state.lse1
                            : which == 1 ? state.lse2
                            : which == 2 ? state.delta1
                            : which == 3 ? state.delta2
                                         : state.lambda;
  const bool exists = m < block.seq.seq_q;
  ptx::copy_4_or_zero(ptx::smem_address(&stats[which][thread % kColumns]),
                      exists ? rows.at(block.b, block.seq.q_begin + m, h) : rows.data, exists);
}

__device__ inline RowStats stats_of_column(const ColumnStats& stats, int column) {
  return {stats[0][column], stats[1][column], stats[2][column], stats[3][column], stats[4][column]};
}

__device__ inline float probability(float s, float scale, float bias, float lse) {
  if (bias == 0.0f) return ptx::probability(fmaf(s, scale, -lse));
  return ptx::probability(fmaf(s, scale, bias) - lse);
}

/// For one pair: s1 becomes ds1, s2 ds2 and dp p1 - lambda p2, 0 where the query may not see the
/// key. Without a bias the product with the scale is not rounded before lse is taken off.
__device__ inline void to_gradients(float& s1, float& s2, float& dp, const RowStats& row,
                                    const BackwardArguments<float>& args, float bias) {
  const float p1 = probability(s1, args.scale_log2, bias, row.lse1);
  const float p2 = __fmul_rn(row.lambda, probability(s2, args.scale2_log2, bias, row.lse2));
  s1 = p1 * (dp - row.delta1);
  s2 = -p2 * (dp - row.delta2);
  dp = p1 - p2;
  if (bias == -INFINITY) s1 = s2 = dp = 0.0f;  // even if they are NaN
}

/// Rows of a gradient from a warp's first one on; null: not wanted.
struct OutputRows {
  float* row0;
  int64_t stride;
  int rows;  // that exist, of the 16
  int width;
  bool aligned;  // 16-byte stores are allowed
};

/// Rows of `sum`, as add_weighted leaves them, times `scale` to those of `out`. Are all finite?
template <int kWidth>
__device__ inline bool store_sums(const OutputRows& out, const float (&sum)[1][kWidth / 8][4],
                                  float scale) {
  if (out.row0 == nullptr) return true;
  const int lane = threadIdx.x % 32;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = lane / 4 + 8 * i;
    float* const to = out.row0 + row * out.stride;
#pragma unroll
    for (int c = 0; c < kWidth / 32; ++c) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 32 * c + lane % 4 * 8 + 4 * e;
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          x[j] = sum[0][4 * c + j][2 * i + e] * scale;
          finite = finite && fabsf(x[j]) < INFINITY;
        }
        if (row >= out.rows) continue;
        if (out.aligned && column + 4 <= out.width) {
          *reinterpret_cast<float4*>(to + column) = {x[0], x[1], x[2], x[3]};
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            if (column + j < out.width) to[column + j] = x[j];
          }
        }
      }
    }
  }
  return finite;
}

/// `rows`: of a block, keys if it `owns_keys`.
inline void launch_backward(const char* name,
                            void (*kernel)(BackwardArguments<float>, Aligned, int), int bytes,
                            int rows, bool owns_keys, const BackwardParams& params,
                            const BackwardArguments<float>& args, const Aligned& aligned,
                            cudaStream_t stream) {
  const int64_t tiles = ((owns_keys ? params.seq_k : params.seq_q) + rows - 1) / rows;
  const auto blocks =
      static_cast<unsigned>(params.batch * (owns_keys ? params.kv_heads : params.heads) * tiles);
  if (blocks == 0) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name,
        params);
  kernel<<<blocks, kThreads, bytes, stream>>>(args, aligned, static_cast<int>(tiles));
  check_launch(name, params);
}

/// For head_dim up to 128 and value_dim up to 256, see wide_backward.cu.
bool takes_wide_backward(const BackwardParams& params);
void wide_backward(const BackwardParams& params, const BackwardArguments<float>& args,
                   const Aligned& aligned, cudaStream_t stream);

}  // namespace diffattn::cuda::tf32
