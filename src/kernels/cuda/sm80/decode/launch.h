// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "diffattn/kernels/params.h"
#include "kernels/cuda/sm80/decode/partials.cuh"

namespace diffattn::cuda::sm80 {

/// True for seq_q up to kDecodeRows and seq_k from kDecodeKeys, bfloat16 and float16, head_dim up
/// to 128 and value_dim up to 256.
bool takes_decode(const Problem& problem);

/// Returns the bytes of device memory that `decode` needs.
int64_t decode_workspace_bytes(const Problem& problem);

/// Computes the forward by split-key decode: `launch_decode`, then `combine`.
void decode(const ForwardParams& params, void* workspace, cudaStream_t stream);

/// Launches decode_kernel for one element type and one pair of padded widths. CMake generates one
/// source file per pair.
template <class T, int kD, int kDv>
void launch_decode(const ForwardParams& params, const Partials& partials, cudaStream_t stream);

/// Merges the splits of each row and stores the results, see combine.cu.
template <class T>
void combine(const ForwardParams& params, const Partials& partials, cudaStream_t stream);

}  // namespace diffattn::cuda::sm80
