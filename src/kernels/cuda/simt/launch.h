// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/forward.h"

/// Kernels without matrix instructions: every type but double, widths up to 256.
namespace diffattn::cuda::simt {

void forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream);

/// dq, dk and dv from a prepared workspace.
void backward(const BackwardParams& params, const BackwardWorkspace& workspace,
              cudaStream_t stream);

}  // namespace diffattn::cuda::simt
