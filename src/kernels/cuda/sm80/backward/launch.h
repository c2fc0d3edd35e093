// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/backward/rows.cuh"

namespace diffattn::cuda::sm80 {

/// Widths up to 128 for q and k, 256 for v; 16-bit types.
bool takes_backward(const Problem& problem);

/// Are all gradients made in one pass over the keys, their sums in any order?
bool is_fused(const BackwardParams& params);

/// What that pass keeps the sums of dq in: units of 16 rows of one head, and device memory, a
/// counter first.
inline constexpr int64_t kDqCounterBytes = 256;
int64_t dq_units(const BackwardParams& params);
int64_t dq_sum_bytes(const BackwardParams& params);

/// dq, dk and dv from a prepared workspace.
void backward(const BackwardParams& params, const BackwardWorkspace& workspace,
              cudaStream_t stream);

/// The same for one type and one pair of padded widths; instances/ has one file per pair.
template <class T, int kD, int kValue>
void launch_backward(const BackwardParams& params, const BackwardWorkspace& workspace,
                     cudaStream_t stream);

}  // namespace diffattn::cuda::sm80
