// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "diffattn/kernels/params.h"
#include "kernels/cuda/sm80/decode/partials.cuh"

namespace diffattn::cuda::sm80 {

/// Few query rows and many keys, 16-bit types, widths up to 128 for q and k, 256 for v.
bool takes_decode(const Problem& problem);

/// Device memory that `decode` needs.
int64_t decode_workspace_bytes(const Problem& problem);

void decode(const ForwardParams& params, void* workspace, cudaStream_t stream);

/// The pass over keys for one type and one pair of padded widths; instances/ has one file per pair.
template <class T, int kD, int kDv>
void launch_decode(const ForwardParams& params, const Partials& partials, cudaStream_t stream);

template <class T>
void combine(const ForwardParams& params, const Partials& partials, cudaStream_t stream);

}  // namespace diffattn::cuda::sm80
