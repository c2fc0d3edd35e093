// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/sm90/backward/tile.cuh"
#include "kernels/cuda/sm90/mask_biases.h"

/// The backward with wgmma and TMA, for compute capability 9.0.
namespace diffattn::cuda::sm90 {

/// True if the current device is sm_90 and the Hopper backward takes this problem. It takes
///   - bf16 and fp16, D = 64 with Dv = 64 or 128, D = 128 with Dv = 128 or 256;
///   - scales between 1e-6 and 1e6;
///   - causal masks, windows, key_starts, key_lengths and packed sequences of known total length;
///   - the boolean and additive mask tensors that `takes_mask` accepts (mask_words.h);
///   - q, k and v that TMA can address (`can_box`), other tensors with 16-byte aligned rows and
///     rests with 8-byte aligned rows.
bool takes_backward(const BackwardParams& params);

/// True if dO equals dout and the main kernel can read dout itself, so that no copy is needed.
bool keeps_dout(const BackwardParams& params);

/// Returns how many unit numbers a head has (`TileNumbers`).
int64_t unit_count(const BackwardParams& params);

/// Returns the bytes of device memory for the main kernel's copy of a mask tensor.
int64_t mask_bytes(const BackwardParams& params);
/// Plans the main kernel's copy of an additive mask at `memory`.
MaskBiases key_biases(const BackwardParams& params, void* memory);

/// Launches the backward on `stream`. Reads o and o2 from `params` or, if the forward did not save
/// them, from the workspace.
void backward(const BackwardParams& params, const BackwardWorkspace& workspace,
              cudaStream_t stream);

// The steps of `backward`, in order. Templates are for one type and one pair of widths.

/// Launches the pass over rows (rows.cuh).
template <class T, int kD, int kValue>
void launch_rows(const BackwardParams& params, const BackwardWorkspace& workspace,
                 cudaStream_t stream);
/// Launches the mask conversion if any, and the main kernel.
template <class T, int kD, int kValue>
void launch_backward(const BackwardParams& params, const BackwardWorkspace& workspace,
                     cudaStream_t stream);
/// Computes dq1 and dq2 from their sums.
void finish_dq(const BackwardParams& params, const BackwardWorkspace& workspace,
               cudaStream_t stream);
/// Computes dnorm_weight from the units' parts.
void finish_dnorm(const BackwardParams& params, const BackwardWorkspace& workspace,
                  cudaStream_t stream);
/// Computes dlambda from the units' parts if it is one number or one per head. Returns false for
/// other shapes, which `reduce_dlambda` computes from workspace.state.
bool finish_dlambda(const BackwardParams& params, const BackwardWorkspace& workspace,
                    cudaStream_t stream);
/// Launches the repair kernels (repair.cuh), which do nothing unless `needs_repair` is set.
template <class T, int kD, int kValue>
void launch_repair(const BackwardParams& params, const BackwardWorkspace& workspace,
                   cudaStream_t stream);

}  // namespace diffattn::cuda::sm90
