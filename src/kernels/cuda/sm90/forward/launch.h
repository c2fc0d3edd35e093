// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/forward.h"

namespace diffattn::cuda::sm90 {

/// Is there a kernel for this problem on sm_90? 16-bit types, 64 channels with values of 64 or 128,
/// 128 with 128 or 256; of mask tensors boolean ones over whole sequences, at 64 and 128; positive
/// scales; tensors that the copy engine can address, packed ones of known length.
bool takes_forward(const ForwardParams& params);

/// Device memory that `forward` needs.
size_t forward_workspace_bytes(const ForwardParams& params);

void forward(const ForwardParams& params, void* workspace, cudaStream_t stream);

/// Is there a kernel for the same forward when its lse1 and lse2 are known? All that
/// `takes_forward` takes but 128 channels with values of 256; o2 may not be wanted.
bool takes_recompute(const ForwardParams& params);

/// out, and o with its rests, from lse1 and lse2 of an earlier forward, which are read. Workspace
/// as for `forward`.
void recompute(const ForwardParams& params, void* workspace, cudaStream_t stream);

/// The forward for one type and one pair of widths; instances/ has one file per pair.
template <class T, int kD, int kDv>
void launch_forward(const ForwardParams& params, void* workspace, cudaStream_t stream);
template <class T, int kD, int kDv>
void launch_recompute(const ForwardParams& params, void* workspace, cudaStream_t stream);

}  // namespace diffattn::cuda::sm90
