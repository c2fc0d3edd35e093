// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>

namespace diffattn {

struct ScanOptions {
  /// [B, E, S] float32 (float64 for float64): the state before the first token. Default: zeros. It
  /// gets no gradient.
  TORCH_ARG(std::optional<torch::Tensor>, state);
  /// [B, L] boolean: true for a token before which the state is 0, where a packed sequence begins.
  TORCH_ARG(std::optional<torch::Tensor>, starts);
};

struct ScanResult {
  torch::Tensor y;      // [B, L, E], in the type of u
  torch::Tensor state;  // [B, E, S] after the last token; float32, or float64 for float64
};

/// The selective scan of Mamba-1, with gradients (first derivatives only):
///
///   dt_t = softplus(delta_t);  s_t = exp(dt_t a) s_{t-1} + dt_t u_t b_t;  y_t = c_t . s_t + d u_t
///
/// u and delta [B, L, E], a [E, S], b and c [B, L, S], d [E]. u, delta, b and c have one type; the
/// state and the arithmetic are float32 (float64 for float64). Throws for other shapes, and on
/// devices without a kernel.
ScanResult selective_scan(const torch::Tensor& u, const torch::Tensor& delta,
                          const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& c,
                          const torch::Tensor& d, const ScanOptions& options = {});

}  // namespace diffattn
