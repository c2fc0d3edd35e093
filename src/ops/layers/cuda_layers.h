// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <array>
#include <utility>

#include "kernels/optimizer.h"
#include "ops/layers/loss.h"

namespace diffattn::ops {

/// The CUDA kernels behind `ops_layers.h`. They are function pointers, so that a build without nvcc
/// links without them. All tensors of a call are on one GPU, 16-byte aligned, contiguous unless
/// noted, and float32, bfloat16 or float16.
struct CudaLayers {
  using Tensor = torch::Tensor;
  /// gate and up [rows, width] have one row stride; y is dense.
  void (*swiglu)(const Tensor& gate, const Tensor& up, const Tensor& y);
  /// dgate and dup have the row stride of gate and up.
  void (*swiglu_backward)(const Tensor& dy, const Tensor& gate, const Tensor& up,
                          const Tensor& dgate, const Tensor& dup);
  /// As cuda::MoveHeads: heads[i] -> out[i], [..., H, dim] each, with the strides that it supports
  /// and as many tokens. The first `rotated` of them rotate.
  void (*move_heads)(at::TensorList heads, at::TensorList out, int64_t rotated, const Tensor& cos,
                     const Tensor& sin, double direction);
  /// As cuda::AddRmsNorm. `branch` and `h` may be undefined together.
  void (*add_rms_norm)(const Tensor& x, const Tensor& branch, const Tensor& weight, double eps,
                       const Tensor& h, const Tensor& y, const Tensor& rstd);
  /// As cuda::AddRmsNormBackward. `dh` may be undefined. Returns dweight.
  Tensor (*add_rms_norm_backward)(const Tensor& dy, const Tensor& dh, const Tensor& h,
                                  const Tensor& weight, const Tensor& rstd, const Tensor& dx);
  /// As cuda::CrossEntropy: loss [T] float32; `factor` [] float32 or undefined.
  void (*cross_entropy)(const Tensor& logits, const Tensor& labels, const CrossEntropyRows& options,
                        const Tensor& factor, const Tensor& loss);
  /// vectors are q1, k1, q2, k2 [D] in float32. Returns lambda [] and what the backward needs.
  std::pair<Tensor, Tensor> (*lambda_vectors)(const std::array<Tensor, 4>& vectors, double init);
  /// Returns [4, D].
  Tensor (*lambda_vectors_backward)(const std::array<Tensor, 4>& vectors,
                                    const Tensor& exponentials, const Tensor& dlambda);
  decltype(&cuda::adamw) adamw;
};

/// Returns null in a build without CUDA kernels.
const CudaLayers* cuda_layers();

}  // namespace diffattn::ops
