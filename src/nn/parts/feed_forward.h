// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace diffattn::nn {

/// Base class of the feed-forward layers of published models.
class FeedForward : public torch::nn::Module {
 public:
  /// x [..., dim] -> the same shape.
  virtual torch::Tensor forward(const torch::Tensor& x) = 0;
};

/// PolyNorm: y = w0 n(x^3) + w1 n(x^2) + w2 n(x) + b, with n(z) = z / sqrt(mean(z^2) + eps) over
/// the last axis. The arithmetic is in float32 (float64 for float64). Parameters: weight [3],
/// initially 1/3 each, and bias [1], initially 0.
class PolyNormImpl : public torch::nn::Module {
 public:
  explicit PolyNormImpl(double eps = 1e-6);
  /// x [..., width] -> the same shape and type.
  torch::Tensor forward(const torch::Tensor& x);

  const double eps;
  torch::Tensor weight, bias;
};
TORCH_MODULE(PolyNorm);

/// The feed-forward layer of Motif, with its parameter names: y = down(act(gate(x)) * up(x)), where
/// act is PolyNorm `act_fn`.
class PolyGLUImpl : public FeedForward {
 public:
  PolyGLUImpl(int64_t dim, int64_t hidden, bool bias);
  torch::Tensor forward(const torch::Tensor& x) override;

  torch::nn::Linear gate_proj{nullptr}, up_proj{nullptr};  // [hidden, dim]
  torch::nn::Linear down_proj{nullptr};                    // [dim, hidden]
  PolyNorm act_fn{nullptr};
};
TORCH_MODULE(PolyGLU);

/// The feed-forward layer of Phi-4-mini-flash, with its parameter names: gate and up are the halves
/// of fc1(x), and y = fc2(silu(gate) * up).
class MergedSwiGLUImpl : public FeedForward {
 public:
  MergedSwiGLUImpl(int64_t dim, int64_t hidden, bool bias);
  torch::Tensor forward(const torch::Tensor& x) override;

  torch::nn::Linear fc1{nullptr};  // [2 hidden, dim]
  torch::nn::Linear fc2{nullptr};  // [dim, hidden]
};
TORCH_MODULE(MergedSwiGLU);

}  // namespace diffattn::nn
