// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "diffattn/kernels/params.h"

namespace diffattn::cuda {

/// O and o2 in float, [B, M, H, Dv], for a backward whose forward did not keep them: its row sums
/// delta then have no rounding of O in them. Null where not wanted.
struct ExactOutputs {
  View<void> o, o2;
};

/// The forward without checks.
void run_forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream);

}  // namespace diffattn::cuda
