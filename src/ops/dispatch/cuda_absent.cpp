// SPDX-License-Identifier: Apache-2.0
//
// A build without nvcc has no fused CUDA kernels: CUDA tensors use the composed backend.

#include "ops/dispatch/cuda_fused.h"
#include "ops/layers/cuda_layers.h"
#include "ops/layers/cuda_scan.h"
#include "ops/layers/token_step.h"

namespace diffattn::ops {

const CudaFused* cuda_fused() { return nullptr; }
const CudaLayers* cuda_layers() { return nullptr; }
const CudaScan* cuda_scan() { return nullptr; }
const TokenStep* cuda_token_step() { return nullptr; }

}  // namespace diffattn::ops
