// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "diffattn/kernels/params.h"

/// The operations on an NVIDIA GPU, sm_80 and later. Every pointer in the parameters is device
/// memory, including the index arrays (key_starts, key_lengths, cu_seqlens). Calls only enqueue
/// work on `stream`: they allocate nothing, never wait, and may be captured in a CUDA graph. The
/// same inputs give the same bits in every run and at every position in a batch, except dq1 and
/// dq2 of a backward that is not `deterministic`. Throws `Error` for wrong parameters or a failed
/// launch.
namespace diffattn::cuda {

using Stream = void*;  // a cudaStream_t of the current device

/// True if there is a kernel for this type and these widths on a GPU of compute capability
/// 10 * major + minor: float32, bfloat16 and float16; head_dim and value_dim up to 256.
bool takes(const Problem& problem, int capability);

/// Returns 10 * major + minor of the current device.
int current_capability();

/// Returns the capability of the current device, capped at `problem.max_capability`.
int usable_capability(const Problem& problem);

/// Returns the size in bytes of the optional workspace with which `forward` is faster; 0 if its
/// kernel uses none. The workspace holds partial results of decoding kernels that split the keys,
/// or scratch data of the sm_90 kernels. Without it (null) the result is as accurate, but may
/// differ in its last bits. Every workspace here and below is device memory, 256-byte aligned; its
/// content on entry does not matter.
size_t forward_workspace_bytes(const ForwardParams& params);
void forward(const ForwardParams& params, void* workspace, Stream stream);
void forward(const ForwardParams& params, Stream stream);

/// Returns the name of the kernels that `forward` would launch on the current device, given a
/// workspace: "decode" (mma.sync, split over keys), "sm90" (wgmma), "sm80" (mma.sync), "tf32"
/// (float32, mma.sync) or "simt".
const char* forward_route(const ForwardParams& params);

/// True if `recompute` has a kernel of its own: sm_90, no mask tensor, value_dim up to 128.
bool takes_recompute(const ForwardParams& params);
/// Recomputes out, and o if given, from lse1 and lse2 of an earlier forward (activation
/// checkpointing). If `takes_recompute`, its kernel does two thirds (Dv = 2 D) or three quarters
/// (Dv = D) of the work of a forward. Otherwise, or without a workspace, it runs a whole forward,
/// which overwrites lse1 and lse2. Never computes o2. Takes the same workspace as `forward`.
void recompute(const ForwardParams& params, void* workspace, Stream stream);

/// Returns the bytes of device memory that `backward` needs.
size_t backward_workspace_bytes(const BackwardParams& params);
void backward(const BackwardParams& params, void* workspace, Stream stream);

/// Returns the name of the kernels that `backward` would launch on the current device: "sm90"
/// (wgmma), "sm80" (mma.sync), "tf32" (float32, mma.sync) or "simt".
const char* backward_route(const BackwardParams& params);

/// Computes row statistics. `stats`, `stats_backward` and `map` store no full map, so memory is
/// O(rows). `takes` tells if they have a kernel; pass it any valid value_dim, since they read no
/// values.
void stats(const StatsParams& params, Stream stream);

/// Returns the bytes of device memory that `stats_backward` needs.
size_t stats_backward_workspace_bytes(const StatsBackwardParams& params);
void stats_backward(const StatsBackwardParams& params, void* workspace, Stream stream);

/// Returns the bytes of device memory that `map` needs. If two entries of a cell have the same
/// magnitude, the cell shows the negative one.
size_t map_workspace_bytes(const MapParams& params);
void map(const MapParams& params, void* workspace, Stream stream);

}  // namespace diffattn::cuda
