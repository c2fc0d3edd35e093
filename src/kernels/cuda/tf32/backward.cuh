// SPDX-License-Identifier: Apache-2.0
//
// Common parts of the tf32 backward kernels (backward.cu and wide_backward.cu): row statistics, the
// elementwise gradients, the row factors, and stores.
#pragma once

#include "kernels/cuda/check.h"
#include "kernels/cuda/quad_reduce.cuh"
#include "kernels/cuda/simt/backward.cuh"
#include "kernels/cuda/tf32/tile.cuh"

namespace diffattn::cuda::tf32 {

using simt::BackwardArguments;

/// Groups of tensors whose rows all start at multiples of 16 bytes.
struct Aligned {
  bool queries, keys;    // q1, q2, dO; k1, k2, v
  bool dqueries, dkeys;  // dq1, dq2; dk1, dk2, dv
};

inline Aligned alignment_of(const BackwardParams& params, const BackwardWorkspace& workspace) {
  return {
      .queries =
          has_rows_of_4(params.q1) && has_rows_of_4(params.q2) && has_rows_of_4(workspace.d_o),
      .keys = has_rows_of_4(params.k1) && has_rows_of_4(params.k2) && has_rows_of_4(params.v),
      .dqueries = has_rows_of_4(params.dq1) && has_rows_of_4(params.dq2),
      .dkeys = has_rows_of_4(params.dk1) && has_rows_of_4(params.dk2) && has_rows_of_4(params.dv)};
}

/// Statistics of a query row. In the passes over keys, `factor1` is the row factor of p1 and
/// `lambda` includes that of p2 (see simt::row_factor). The pass over queries computes the factors;
/// it has factor1 = 1 and the plain lambda.
struct RowStats {
  float lse1, lse2, delta1, delta2, lambda, factor1;
};
inline constexpr int kStats = 7;  // those of RowStats, and the factor of ds (RowFactors::ds)
using ColumnStats = float[kStats][kColumns];

/// Fills `stats` for queries [m0, m0 + 32) of head h by cp.async.
__device__ inline void load_stats_of_columns(ColumnStats& stats,
                                             const BackwardArguments<float>& args,
                                             const WorkItem& block, int h, int m0) {
  const int thread = ptx::reread_thread(), which = thread / kColumns, m = m0 + thread % kColumns;
  if (which >= kStats) return;
  const Rows<float>& rows = which == 0   ? args.state.lse1
                            : which == 1 ? args.state.lse2
                            : which == 2 ? args.state.delta1
                            : which == 3 ? args.state.delta2
                            : which == 4 ? args.row_factors.lambda
                            : which == 5 ? args.row_factors.p1
                                         : args.row_factors.ds;
  const bool exists = m < block.seq.seq_q;
  ptx::copy_4_or_zero(ptx::smem_address(&stats[which][thread % kColumns]),
                      exists ? rows.at(block.b, block.seq.q_begin + m, h) : rows.data, exists);
}

__device__ inline RowStats stats_of_column(const ColumnStats& stats, int column) {
  return {stats[0][column], stats[1][column], stats[2][column],
          stats[3][column], stats[4][column], stats[5][column]};
}

/// Returns the factor of ds. Only a tile with hidden entries can hold a row that sees one key.
__device__ inline float ds_factor_of_column(const ColumnStats& stats, int column) {
  return stats[kStats - 1][column];
}

/// Loads the statistics of this lane's query rows, warp_row + g and warp_row + g + 8, g = lane / 4.
__device__ inline void load_stats_of_rows(RowStats (&rows)[2], const RowState& state,
                                          const WorkItem& block, int warp_row) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row =
        min(warp_row + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * i, block.seq.seq_q - 1);
    const auto stat = [&](const Rows<float>& from) {
      return *from.at(block.b, block.seq.q_begin + row, block.h);
    };
    rows[i] = {stat(state.lse1),   stat(state.lse2),   stat(state.delta1),
               stat(state.delta2), stat(state.lambda), 1.0f};
  }
}

/// Calls f(j, e) for every entry e of fragment j of a tile of scores.
template <int kN8, class F>
__device__ inline void for_each_entry(F f) {
#pragma unroll
  for (int j = 0; j < kN8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) f(j, e);
  }
}

/// p1 and p2 of one (query, key), not yet multiplied by the row factors.
struct Probabilities {
  float p1, p2;
};

/// For one (query, key), replaces s1 by ds1, s2 by ds2 and dp by p1 - lambda p2; all become 0 if
/// the query may not see the key.
__device__ inline Probabilities to_gradients(float& s1, float& s2, float& dp, const RowStats& row,
                                             const BackwardArguments<float>& args, float bias) {
  Probabilities found{simt::probability(s1, args.scale_log2, bias, row.lse1),
                      simt::probability(s2, args.scale2_log2, bias, row.lse2)};
  const float p1 = __fmul_rn(row.factor1, found.p1), p2 = __fmul_rn(row.lambda, found.p2);
  s1 = p1 * (dp - row.delta1);
  s2 = -p2 * (dp - row.delta2);
  dp = p1 - p2;
  if (bias == -INFINITY) s1 = s2 = dp = found.p1 = found.p2 = 0.0f;  // overwrites NaN, too
  return found;
}

/// Sums of p1 and p2 of rows g and g + 8 over this lane's columns.
struct RowSums {
  float p1[2] = {0.0f, 0.0f}, p2[2] = {0.0f, 0.0f};

  __device__ void add(int i, const Probabilities& p) { p1[i] += p.p1, p2[i] += p.p2; }
};

/// Factors of dq1 and dq2 for rows g and g + 8: scale times row factor.
struct DqScales {
  float dq1[2], dq2[2];
};

/// Computes the factors of rows g and g + 8 from the lanes' sums, and stores them for the passes
/// over keys. Returns false if a sum is NaN.
__device__ inline bool finish_row_factors(DqScales& scales, const RowSums& sums,
                                          const RowStats (&rows)[2],
                                          const BackwardArguments<float>& args,
                                          const WorkItem& block, int warp_row) {
  bool finite = true;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sum1 = quad_sum(sums.p1[i]), sum2 = quad_sum(sums.p2[i]);
    const float factor1 = simt::row_factor(sum1, rows[i].lse1, args.shape);
    const float factor2 = simt::row_factor(sum2, rows[i].lse1, args.shape);
    scales.dq1[i] = args.scale * factor1, scales.dq2[i] = args.scale2 * factor2;
    const int row = warp_row + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * i;
    if (row >= block.seq.seq_q) continue;
    finite = finite && sum1 == sum1 && sum2 == sum2;
    const int64_t at = block.seq.q_begin + row;
    const float ds_factor = *args.row_factors.ds.at(block.b, at, block.h);
    scales.dq1[i] *= ds_factor, scales.dq2[i] *= ds_factor;
    if (threadIdx.x % 4 != 0) continue;
    *args.row_factors.p1.at(block.b, at, block.h) = factor1;
    *args.row_factors.lambda.at(block.b, at, block.h) = rows[i].lambda * factor2;
  }
  return finite;
}

/// The 16 rows of a gradient that a warp stores.
struct OutputRows {
  float* row0;     // first row; null if the caller does not want the gradient
  int64_t stride;  // floats from one row to the next
  int rows;        // rows from row0 on that exist; may exceed 16
  int width;
  bool aligned;  // rows start at multiples of 16 bytes
};

/// Stores `sum`, which has the layout of add_weighted, to `out`, multiplied by scale[i] in row
/// g + 8 i. Returns whether this lane's results are all finite.
template <int kWidth>
__device__ inline bool store_sums(const OutputRows& out, const float (&sum)[1][kWidth / 8][4],
                                  const float (&scale)[2]) {
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
          x[j] = sum[0][4 * c + j][2 * i + e] * scale[i];
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

/// Launches one block per tile of `rows` rows of each head: keys of a kv head if `owns_keys`, else
/// queries.
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

/// True if wide_backward.cu supports the problem: head_dim up to 128 and value_dim up to 256.
bool takes_wide_backward(const BackwardParams& params);
/// Computes dq, dk and dv of such a problem.
void wide_backward(const BackwardParams& params, const BackwardArguments<float>& args,
                   const Aligned& aligned, cudaStream_t stream);

}  // namespace diffattn::cuda::tf32
