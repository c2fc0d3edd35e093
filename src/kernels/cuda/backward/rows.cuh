// SPDX-License-Identifier: Apache-2.0
//
// Workspace of the backward, and the row pass that fills it before the passes over keys and
// queries:
//
//   dO = gradient of the epilogue at dout            [rows, H, Dv], in T
//   delta2 = dO.o2,  delta1 = dO.O + lambda delta2   row sums of the softmax gradients
//   minus_dlambda = dO.o2                            with dO before its rounding to T
//   lse1, lse2 in base 2                             +inf for a row that sees no column: p = 0
//
// "rows" is B * M, or total_q for packed sequences if it is known.
#pragma once

#include <cuda_runtime_api.h>

#include "diffattn/kernels/params.h"
#include "kernels/cuda/problem.cuh"

namespace diffattn::cuda {

/// Arrays [H, rows] of one float per (b, m, h).
struct RowState {
  Rows<float> lse1, lse2, delta1, delta2, lambda, minus_dlambda;
};

/// Normalising factors of the rows for the float32 kernels (simt, tf32), arrays [H, rows]. Their
/// pass over queries computes them for the passes over keys, see simt::row_factor.
struct RowFactors {
  Rows<float> p1, lambda;  // factor of p1; lambda times the factor of p2
  /// Factor of ds1 and ds2, which the row pass computes: 0 for a row that sees one key, else 1.
  Rows<float> ds;
};

/// Workspace of the sm90 kernels per unit of 64 rows of a head, see sm90/backward/stats.cuh.
struct UnitWorkspace {
  char* stats = nullptr;           // [H, units, kStatBytes]
  float* dq_sums = nullptr;        // [H, units, 2, 64, D]
  int* dq_done = nullptr;          // [H, units, sm90::kDqWriters]
  float* dlambda_parts = nullptr;  // [H, units]
  void* words = nullptr;           // sm90::KeyWords or sm90::MaskBiases, only under a mask
  int* needs_repair = nullptr;     // [1]: not 0 if the sm80 kernels must recompute all gradients
};

/// The workspace of one backward, divided into its arrays.
struct BackwardWorkspace {
  size_t bytes = 0;
  View<void> d_o;    // [B, M, H, Dv] in T; dout itself if dO equals dout
  View<void> o, o2;  // [B, M, H, Dv] in float, only if the forward did not save o and o2
  RowState state;
  float* dnorm_parts = nullptr;    // partial sums [kRowBlocks, Dv]; sm90: [Dv, H, units]
  float* dlambda_parts = nullptr;  // partial sums, dlambda_part_bytes
  bool sm90 = false;               // the sm90 kernels compute this backward
  UnitWorkspace units;             // sm90 only
  float* dq_sums = nullptr;        // sm80 fused pass only, see sm80/backward/dq_sums.cuh
  int64_t dq_sum_bytes = 0;
  RowFactors row_factors;  // simt and tf32 only

  /// Lays the arrays out in `memory`. If it is null, only `bytes` is meaningful.
  BackwardWorkspace(const BackwardParams& params, void* memory);
};

inline View<const void> as_input(const View<void>& view) {
  return {view.data, view.batch_stride, view.seq_stride, view.head_stride};
}

/// Blocks of the row pass. The number is fixed, so that the order in which dnorm_weight is summed
/// is the same on every GPU.
inline constexpr int kRowBlocks = 1024;

/// Fills the workspace from dout, o, o2, lse and lambda, zeroes the sums of dq, and computes
/// dnorm_weight if the caller wants it. If `only_if` (device memory) is given, the kernels do
/// nothing when it holds 0, and never touch dnorm_weight or the sums of dq.
void prepare_rows(const BackwardParams& params, const BackwardWorkspace& workspace,
                  cudaStream_t stream, const int* only_if = nullptr);

/// Computes dlambda: each entry is the sum over the rows that share it, in a fixed order.
void reduce_dlambda(const BackwardParams& params, const BackwardWorkspace& workspace,
                    cudaStream_t stream);

/// Does the same from `minus_rows` [B, M, H], the negative gradient of each row, with `parts` of
/// dlambda_part_bytes as scratch memory. Does nothing if `dlambda` is null.
void reduce_dlambda(const Problem& problem, const View<void>& dlambda,
                    const Rows<float>& minus_rows, float* parts, cudaStream_t stream);
int64_t dlambda_part_bytes(const Problem& problem, const View<void>& dlambda);

/// Computes dmask: each entry is the sum of ds1 + ds2 over the scores that share it, in a fixed
/// order.
void reduce_dmask(const BackwardParams& params, const BackwardWorkspace& workspace,
                  cudaStream_t stream);

}  // namespace diffattn::cuda
