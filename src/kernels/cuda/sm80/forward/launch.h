// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/dispatch/forward.h"

namespace diffattn::cuda::sm80 {

/// True for bfloat16 and float16 with head_dim up to 128 and value_dim up to 256.
bool takes_forward(const Problem& problem);

/// Computes the forward with the sm80 kernels. Requires `takes_forward`.
void forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream);

/// Launches the forward for one element type and one pair of padded widths. CMake generates one
/// source file per pair.
template <class T, int kD, int kDv>
void launch_forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream);

}  // namespace diffattn::cuda::sm80
