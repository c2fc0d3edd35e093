// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "diffattn/kernels/params.h"

/// The operations on an NVIDIA GPU, sm_80 and later. Every pointer in the parameters is device
/// memory, the index arrays (key_starts, key_lengths, cu_seqlens) too. Calls only enqueue work on
/// `stream`: they allocate nothing, never wait, and may be captured in a graph. The same inputs
/// give the same bits, in every run and at every place in a batch; but for dq1 and dq2 of a
/// backward that need not be `deterministic`. Throws `Error` for wrong
/// parameters or a failed launch.
namespace diffattn::cuda {

using Stream = void*;  // a cudaStream_t of the current device

/// Is there a kernel for this type and these widths on a GPU of compute capability
/// 10 * major + minor? float32, bfloat16 and float16; head_dim and value_dim up to 256.
bool takes(const Problem& problem, int capability);

/// 10 * major + minor of the current device.
int current_capability();

/// Kernels written for GPUs later than `capability` (10 * major + minor) are not used by calls from
/// here on: 80 leaves the portable ones, and a lower number none in float32 that use matrix
/// instructions. Process-wide, for comparisons.
void limit_capability(int capability);

/// What the current device has, within that limit.
int usable_capability();

/// Device memory that makes a forward faster (more blocks share the keys of few rows; the kernels
/// of sm_90): 0 where it would not. Without it (or with null) the result is as good, but not the
/// same bits. Here and below 256-byte aligned; its content on entry does not matter.
size_t forward_workspace_bytes(const ForwardParams& params);
void forward(const ForwardParams& params, void* workspace, Stream stream);
void forward(const ForwardParams& params, Stream stream);

/// The kernels that would compute it on the current device, with a workspace: "decode" (mma.sync,
/// split over keys), "sm90" (wgmma), "sm80" (mma.sync), "tf32" (float32, mma.sync) or "simt".
const char* forward_route(const ForwardParams& params);

/// out, and o where wanted, of a forward whose lse1 and lse2 are known from an earlier one
/// (activation checkpointing): two thirds (Dv = 2 D) or three quarters (Dv = D) of the work where
/// there is a kernel for it (`takes_recompute`: sm_90, but for value_dim 256), else a whole
/// forward, which writes lse1 and lse2 again. o2 is not computed. Workspace as for `forward`.
bool takes_recompute(const ForwardParams& params);
void recompute(const ForwardParams& params, void* workspace, Stream stream);

/// Device memory that `backward` needs.
size_t backward_workspace_bytes(const BackwardParams& params);
void backward(const BackwardParams& params, void* workspace, Stream stream);

/// The kernels that would compute it on the current device: "sm90" (wgmma), "sm80" (mma.sync),
/// "tf32" (float32, mma.sync) or "simt".
const char* backward_route(const BackwardParams& params);

/// Row statistics, their gradients, and pictures of the maps. `takes` says whether there are
/// kernels (with any value_dim it takes: these have none). No map is ever stored: memory is
/// O(rows).
void stats(const StatsParams& params, Stream stream);

/// Device memory that `stats_backward` needs.
size_t stats_backward_workspace_bytes(const StatsBackwardParams& params);
void stats_backward(const StatsBackwardParams& params, void* workspace, Stream stream);

/// Device memory that `map` needs. Of entries of equal magnitude in a cell the negative one shows.
size_t map_workspace_bytes(const MapParams& params);
void map(const MapParams& params, void* workspace, Stream stream);

}  // namespace diffattn::cuda
