// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/backward/rows.cuh"

namespace diffattn::cuda::sm80 {

/// True for bfloat16 and float16 with head_dim up to 128 and value_dim up to 256.
bool takes_backward(const Problem& problem);

/// True if one pass over the keys computes all gradients. It adds to dq with atomics, so the order
/// of summation varies from run to run.
bool is_fused(const BackwardParams& params);

/// Workspace of the fused pass for its sums of dq: a tile counter, padded to kDqCounterBytes, then
/// the sums. `dq_units` counts the 16-row units per head; `dq_sum_bytes` is the whole size, or 0 if
/// the pass is not fused.
inline constexpr int64_t kDqCounterBytes = 256;
int64_t dq_units(const BackwardParams& params);
int64_t dq_sum_bytes(const BackwardParams& params);

/// Computes dq, dk and dv with the sm80 kernels, after `prepare_rows` has filled the workspace.
void backward(const BackwardParams& params, const BackwardWorkspace& workspace,
              cudaStream_t stream);

/// Launches the backward for one element type and one pair of padded widths. CMake generates one
/// source file per pair.
template <class T, int kD, int kValue>
void launch_backward(const BackwardParams& params, const BackwardWorkspace& workspace,
                     cudaStream_t stream);

}  // namespace diffattn::cuda::sm80
