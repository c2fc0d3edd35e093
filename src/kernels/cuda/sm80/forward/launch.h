// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/forward.h"

namespace diffattn::cuda::sm80 {

/// Widths up to 128 for q and k, 256 for v; 16-bit types.
bool takes_forward(const Problem& problem);

void forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream);

/// The forward for one type and one pair of padded widths; instances/ has one file per pair.
template <class T, int kD, int kDv>
void launch_forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream);

}  // namespace diffattn::cuda::sm80
