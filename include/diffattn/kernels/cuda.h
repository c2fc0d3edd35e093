// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "diffattn/kernels/params.h"

/// The operations on an NVIDIA GPU, sm_80 and later. Every pointer in the parameters is device
/// memory, the index arrays (key_starts, key_lengths, cu_seqlens) too. Calls only enqueue work on
/// `stream`: they allocate nothing, never wait, and may be captured in a graph. The same inputs
/// give the same bits, in every run and at every place in a batch. Throws `Error` for wrong
/// parameters or a failed launch.
namespace diffattn::cuda {

using Stream = void*;  // a cudaStream_t of the current device

/// Is there a kernel for this type and these widths on a GPU of compute capability
/// 10 * major + minor? float32, bfloat16 and float16; head_dim and value_dim up to 256.
bool takes(const Problem& problem, int capability);

/// 10 * major + minor of the current device.
int current_capability();

/// Device memory that makes a forward of few rows against many keys faster, by letting more blocks
/// share the keys: 0 where it would not. Without it (or with null) the result is as good, but not
/// the same bits. Here and below 256-byte aligned; its content on entry does not matter.
size_t forward_workspace_bytes(const ForwardParams& params);
void forward(const ForwardParams& params, void* workspace, Stream stream);
void forward(const ForwardParams& params, Stream stream);

/// Device memory that `backward` needs.
size_t backward_workspace_bytes(const BackwardParams& params);
void backward(const BackwardParams& params, void* workspace, Stream stream);

}  // namespace diffattn::cuda
