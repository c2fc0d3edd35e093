// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/dispatch/forward.h"

/// float32 kernels that compute each product with three tf32 mma instructions. They take head_dim
/// 16 to 128 on GPUs with enough shared memory per block: 135 KiB for the forward with head_dim up
/// to 64, 215 KiB for the forward beyond, 203 KiB for the backward.
namespace diffattn::cuda::tf32 {

/// True if these kernels support the problem on the current device.
bool takes_forward(const ForwardParams& params);
void forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream);

/// True if these kernels support the problem on the current device.
bool takes_backward(const BackwardParams& params);
/// Computes dq, dk and dv, after `prepare_rows` has filled the workspace.
void backward(const BackwardParams& params, const BackwardWorkspace& workspace,
              cudaStream_t stream);

}  // namespace diffattn::cuda::tf32
