// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

namespace diffattn::nn {

struct SwiGLUOptions {
  SwiGLUOptions(int64_t dim, int64_t hidden) : dim_(dim), hidden_(hidden) {}
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(int64_t, hidden);
  TORCH_ARG(bool, bias) = false;
  /// Merges gate and up into one projection `gate_up_proj` (gate first): one larger product.
  TORCH_ARG(bool, merged) = false;
};

/// The feed-forward layer of Llama, with its parameter names: y = down(silu(gate(x)) * up(x)).
class SwiGLUImpl : public torch::nn::Cloneable<SwiGLUImpl> {
 public:
  explicit SwiGLUImpl(const SwiGLUOptions& options);
  void reset() override;

  /// x [..., dim] -> the same shape.
  torch::Tensor forward(const torch::Tensor& x);

  SwiGLUOptions options;
  torch::nn::Linear gate_proj{nullptr}, up_proj{nullptr};  // [hidden, dim]
  torch::nn::Linear gate_up_proj{nullptr};                 // [2 hidden, dim], if merged
  torch::nn::Linear down_proj{nullptr};                    // [dim, hidden]
};

TORCH_MODULE(SwiGLU);

}  // namespace diffattn::nn
