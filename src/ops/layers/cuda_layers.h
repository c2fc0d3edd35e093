// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

namespace diffattn::ops {

/// The CUDA kernels behind `ops_layers.h`: pointers, so that a build without nvcc has none.
/// Tensors are on one GPU, contiguous where nothing else is said, 16-byte aligned, and of a type
/// the kernels know.
struct CudaLayers {
  void (*swiglu)(const torch::Tensor& gate, const torch::Tensor& up, const torch::Tensor& y);
  void (*swiglu_backward)(const torch::Tensor& dy, const torch::Tensor& gate,
                          const torch::Tensor& up, const torch::Tensor& dgate,
                          const torch::Tensor& dup);
  /// heads as cuda::Rotate takes them.
  void (*rotate)(const torch::Tensor& heads, const torch::Tensor& cos, const torch::Tensor& sin,
                 double direction, const torch::Tensor& out);
};

/// Null in a build without them.
const CudaLayers* cuda_layers();

}  // namespace diffattn::ops
