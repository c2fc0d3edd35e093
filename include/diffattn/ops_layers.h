// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

/// The operators around attention in a layer, with gradients. Float32 on the CPU, and swiglu and
/// rotate on a GPU, run as one fused pass over memory with first derivatives only. Everything else
/// uses torch's operators.
namespace diffattn {

/// Returns weight x / sqrt(mean(x^2) + eps), with the mean over the last axis. x [..., width];
/// weight [width] of the same type; undefined means ones.
torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, double eps);

/// Returns silu(gate) up, for tensors of one shape and type.
torch::Tensor swiglu(const torch::Tensor& gate, const torch::Tensor& up);

/// Computes torch::linear: x [..., in], weight [out, in], bias [out] or undefined. Inputs of a few
/// rows in float32 or bfloat16 on the CPU run on our own kernel if they need no gradient. That
/// kernel rounds only the result.
torch::Tensor linear(const torch::Tensor& x, const torch::Tensor& weight,
                     const torch::Tensor& bias = {});

struct RotateOptions {
  int64_t width = 0;         // elements of a head that rotate
  bool interleaved = false;  // pairs (2i, 2i + 1) instead of (i, i + width / 2)
  double direction = 1.0;    // -1 rotates by the negative angles
};

/// Applies the rotary embedding to heads [B, N, H, D] or [total, H, D]. The tables are
/// [N, width / 2], [B, N, width / 2] or [total, width / 2] in float32 (float64 for float64) and get
/// no gradient. Rounds once, to the type of the heads.
torch::Tensor rotate(const torch::Tensor& heads, const torch::Tensor& cos, const torch::Tensor& sin,
                     const RotateOptions& options);

}  // namespace diffattn
