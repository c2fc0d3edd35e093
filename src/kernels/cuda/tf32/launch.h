// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/forward.h"

/// Kernels for float32 by tf32 matrix instructions, three for each product: head_dim 16 to 128,
/// on GPUs with enough shared memory for them (forward 135 KiB up to 64 columns, 215 KiB beyond;
/// backward 203 KiB).
namespace diffattn::cuda::tf32 {

bool takes_forward(const ForwardParams& params);
void forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream);

/// dq, dk and dv from a prepared workspace.
bool takes_backward(const BackwardParams& params);
void backward(const BackwardParams& params, const BackwardWorkspace& workspace,
              cudaStream_t stream);

}  // namespace diffattn::cuda::tf32
