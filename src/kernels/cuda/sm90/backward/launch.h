// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/sm90/backward/tile.cuh"
#include "kernels/cuda/sm90/mask_biases.h"

/// The backward with warpgroup-wide matrix instructions, for compute capability 9.0.
namespace diffattn::cuda::sm90 {

/// 16-bit types, D = 64 with Dv = 64 or 128, D = 128 with Dv = 128 or 256, of mask tensors those of
/// `takes_mask`, tensors that the copy engine can address, on a current device that has the
/// instructions.
bool takes_backward(const BackwardParams& params);

/// Is dO the same as dout, so that no copy of it is needed?
bool keeps_dout(const BackwardParams& params);

/// Numbers of units of 64 rows of one head.
int64_t unit_count(const BackwardParams& params);

/// A mask as the main kernel reads it: device memory for it, and an additive one.
int64_t mask_bytes(const BackwardParams& params);
MaskBiases key_biases(const BackwardParams& params, void* memory);

/// Everything from dout on. o and o2 are in params or in the workspace.
void backward(const BackwardParams& params, const BackwardWorkspace& workspace,
              cudaStream_t stream);

/// Its steps: the pass over rows; the main kernel; dq1 and dq2 from their sums; dnorm_weight from
/// its parts; dlambda from its own, if it is one number or one a head, else from workspace.state;
/// all of dq, dk and dv again by the portable kernels where the main one could not do it.
/// Templates are for one type and pair of widths; instances/ has one file per pair.
template <class T, int kD, int kValue>
void launch_rows(const BackwardParams& params, const BackwardWorkspace& workspace,
                 cudaStream_t stream);
template <class T, int kD, int kValue>
void launch_backward(const BackwardParams& params, const BackwardWorkspace& workspace,
                     cudaStream_t stream);
void finish_dq(const BackwardParams& params, const BackwardWorkspace& workspace,
               cudaStream_t stream);
void finish_dnorm(const BackwardParams& params, const BackwardWorkspace& workspace,
                  cudaStream_t stream);
bool finish_dlambda(const BackwardParams& params, const BackwardWorkspace& workspace,
                    cudaStream_t stream);
template <class T, int kD, int kValue>
void launch_repair(const BackwardParams& params, const BackwardWorkspace& workspace,
                   cudaStream_t stream);

}  // namespace diffattn::cuda::sm90
