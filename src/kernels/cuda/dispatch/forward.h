// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "diffattn/kernels/params.h"

namespace diffattn::cuda {

/// O and o2 in float32, [B, M, H, Dv], for a backward whose forward did not save them. Its row sums
/// delta then contain no rounding of O. Null if not wanted.
struct ExactOutputs {
  View<void> o, o2;
};

/// Runs the forward without checking the parameters.
void run_forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream);

}  // namespace diffattn::cuda
