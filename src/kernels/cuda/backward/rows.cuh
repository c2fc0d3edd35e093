// SPDX-License-Identifier: Apache-2.0
//
// What the backward knows of every row before it meets the keys, kept in the workspace:
//
//   dO = gradient of the epilogue at dout            [rows, H, Dv], in T
//   delta2 = dO.o2,  delta1 = dO.O + lambda delta2   the softmax gradients' row sums
//   minus_dlambda = dO.o2 with dO as it was before it was rounded to T
//   lse1, lse2 in base 2; +inf for a row that sees nothing, so that its P is 0
//
// "rows" is B * M, or the packed total, which B * M bounds.
#pragma once

#include <cuda_runtime_api.h>

#include "diffattn/kernels/params.h"
#include "kernels/cuda/problem.cuh"

namespace diffattn::cuda {

/// Arrays of one float per (b, m, h), rows of a head adjacent: [H, rows].
struct RowState {
  Rows<float> lse1, lse2, delta1, delta2, lambda, minus_dlambda;
};

/// Of the float kernels, simt and tf32, which find them in their pass over queries and use them in
/// those over keys: what p1 is multiplied by, and lambda times what p2 is. See simt::share_of.
struct RowShares {
  Rows<float> p1, lambda;  // as in RowState
};

/// What the sm_90a kernels keep for each unit of 64 rows of a head, see sm90/backward/stats.cuh.
struct UnitWorkspace {
  char* stats = nullptr;           // [H, units, kStatBytes]
  float* dq_sums = nullptr;        // [H, units, 2, 64, D]
  int* dq_done = nullptr;          // [H, units, sm90::kDqWriters]
  float* dlambda_parts = nullptr;  // [H, units]
  void* words = nullptr;           // sm90::KeyWords or sm90::MaskBiases, under a mask
  int* recompute = nullptr;        // 1: not 0 where these kernels' results are not to be used
};

/// The workspace of one backward, cut into its arrays.
struct BackwardWorkspace {
  size_t bytes = 0;
  View<void> d_o;    // [B, M, H, Dv] in the problem's type; dout itself where they are the same
  View<void> o, o2;  // the same in float, only when the forward did not save them
  RowState state;
  float* dnorm_parts = nullptr;    // [kRowBlocks, Dv]; sm_90a: [Dv, H, units]
  float* dlambda_parts = nullptr;  // dlambda_part_bytes
  bool sm90 = false;               // the sm_90a kernels compute it
  UnitWorkspace units;
  float* dq_sums = nullptr;  // of the portable kernels, see sm80/backward/dq_sums.cuh
  int64_t dq_sum_bytes = 0;
  RowShares shares;

  /// With `memory` null only `bytes` is meaningful.
  BackwardWorkspace(const BackwardParams& params, void* memory);
};

inline View<const void> as_input(const View<void>& view) {
  return {view.data, view.batch_stride, view.seq_stride, view.head_stride};
}

/// Blocks of the pass over rows: fixed, so that the sum of dnorm_weight has one order everywhere.
inline constexpr int kRowBlocks = 1024;

/// Fills the workspace from dout, o, o2, lse and lambda, clears the sums of dq, and makes
/// dnorm_weight where it is wanted.
/// With `only_if`, device memory: once more where it does not hold 0, but for dnorm_weight and
/// sums of dq.
void prepare_rows(const BackwardParams& params, const BackwardWorkspace& workspace,
                  cudaStream_t stream, const int* only_if = nullptr);

/// dlambda, each entry the sum over the rows it was broadcast to, in a fixed order.
void reduce_dlambda(const BackwardParams& params, const BackwardWorkspace& workspace,
                    cudaStream_t stream);

/// The same from any rows [B, M, H] that hold the negative of each row's gradient; nothing when
/// `dlambda` is null. parts: dlambda_part_bytes of memory.
void reduce_dlambda(const Problem& problem, const View<void>& dlambda,
                    const Rows<float>& minus_rows, float* parts, cudaStream_t stream);
int64_t dlambda_part_bytes(const Problem& problem, const View<void>& dlambda);

/// dmask, each entry the sum of ds1 + ds2 over what it was broadcast to, in a fixed order.
void reduce_dmask(const BackwardParams& params, const BackwardWorkspace& workspace,
                  cudaStream_t stream);

}  // namespace diffattn::cuda
