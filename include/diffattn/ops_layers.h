// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

/// What stands around attention in a layer, with gradients: one pass over memory each for float32
/// on the CPU and (swiglu, rotate) on a GPU, torch's operators for everything else. First
/// derivatives only where it is fused.
namespace diffattn {

/// weight x / sqrt(mean(x^2) + eps) over the last axis. x [..., width]; weight [width] of the same
/// type, or undefined: ones.
torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, double eps);

/// silu(gate) up, tensors of one shape and type.
torch::Tensor swiglu(const torch::Tensor& gate, const torch::Tensor& up);

/// torch::linear, x [..., in], weight [out, in], bias [out] or undefined. A few rows of float32 or
/// bfloat16 on the CPU that need no gradient go through a kernel of ours: one rounding, of the
/// result.
torch::Tensor linear(const torch::Tensor& x, const torch::Tensor& weight,
                     const torch::Tensor& bias = {});

struct RotateOptions {
  int64_t width = 0;         // elements of a head that turn
  bool interleaved = false;  // pairs (2i, 2i + 1) instead of (i, i + width / 2)
  double direction = 1.0;    // -1: back
};

/// Rotary embedding of heads [B, N, H, D] or [total, H, D] by tables [N, width / 2],
/// [B, N, width / 2] or [total, width / 2] in float32 (float64); one rounding to the type of the
/// heads. Tables get no gradient.
torch::Tensor rotate(const torch::Tensor& heads, const torch::Tensor& cos, const torch::Tensor& sin,
                     const RotateOptions& options);

}  // namespace diffattn
