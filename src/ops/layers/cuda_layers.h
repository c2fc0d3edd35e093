// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

namespace diffattn::ops {

/// The CUDA kernels behind `ops_layers.h`. They are function pointers, so that a build without nvcc
/// links without them. All tensors of a call are on one GPU, 16-byte aligned, contiguous unless
/// noted, and float32, bfloat16 or float16.
struct CudaLayers {
  void (*swiglu)(const torch::Tensor& gate, const torch::Tensor& up, const torch::Tensor& y);
  void (*swiglu_backward)(const torch::Tensor& dy, const torch::Tensor& gate,
                          const torch::Tensor& up, const torch::Tensor& dgate,
                          const torch::Tensor& dup);
  /// The heads may have the strides that cuda::Rotate supports.
  void (*rotate)(const torch::Tensor& heads, const torch::Tensor& cos, const torch::Tensor& sin,
                 double direction, const torch::Tensor& out);
};

/// Returns null in a build without CUDA kernels.
const CudaLayers* cuda_layers();

}  // namespace diffattn::ops
