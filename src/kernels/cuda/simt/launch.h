// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/dispatch/forward.h"

/// Kernels without tensor cores: float32, bfloat16 and float16, widths up to 256.
namespace diffattn::cuda::simt {

/// Computes the forward with the simt kernel.
void forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream);

/// Computes dq, dk and dv with the simt kernels, after `prepare_rows` has filled the workspace.
void backward(const BackwardParams& params, const BackwardWorkspace& workspace,
              cudaStream_t stream);

}  // namespace diffattn::cuda::simt
