// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/dispatch/forward.h"

namespace diffattn::cuda::sm90 {

/// True if the Hopper kernels take this problem. Does not check the GPU. They take
///   - bf16 and fp16, D = 64 with Dv = 64 or 128, D = 128 with Dv = 128 or 256, positive scales;
///   - causal masks, windows, key_starts, key_lengths and packed sequences of known total length;
///   - the boolean and additive mask tensors that `takes_mask` accepts (mask_words.h);
///   - at least one query and one key, in tensors that TMA can address (`can_box`).
bool takes_forward(const ForwardParams& params);

/// Returns the bytes of device memory that `forward` needs as workspace.
size_t forward_workspace_bytes(const ForwardParams& params);

/// Launches the forward on `stream`. Requires `takes_forward` and an H100 or H200 (sm_90a).
void forward(const ForwardParams& params, void* workspace, cudaStream_t stream);

/// True if `recompute` takes this problem: `takes_forward` is true, Dv is at most 128, there is no
/// mask tensor, lse1 and lse2 are given, and o2 and o2_rest are not wanted.
bool takes_recompute(const ForwardParams& params);

/// Launches the second forward of an activation-checkpointed layer. It reads lse1 and lse2 of the
/// first forward and computes out and, if wanted, o and o_rest. Needs the workspace of `forward`.
void recompute(const ForwardParams& params, void* workspace, cudaStream_t stream);

/// `forward` and `recompute` for one type and one pair of widths, each instantiated in a file of
/// its own.
template <class T, int kD, int kDv>
void launch_forward(const ForwardParams& params, void* workspace, cudaStream_t stream);
template <class T, int kD, int kDv>
void launch_recompute(const ForwardParams& params, void* workspace, cudaStream_t stream);

}  // namespace diffattn::cuda::sm90
