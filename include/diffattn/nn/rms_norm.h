// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

namespace diffattn::nn {

/// Rounding in a norm of 16-bit activations. In float32 and float64 both modes are the same.
enum class NormRounding {
  /// Multiplies by the weight in float32 and rounds once, to the type of x.
  kOnce,
  /// Rounds x / rms to the type of x, then multiplies by the weight, as the published Llama and
  /// Microsoft code does. A float32 weight makes the result float32.
  kBeforeWeight,
};

struct RMSNormOptions {
  /*implicit*/ RMSNormOptions(int64_t dim) : dim_(dim) {}
  /// Width of the last axis.
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(double, eps) = 1e-5;
  /// Adds a learned `weight` [dim], initially ones.
  TORCH_ARG(bool, elementwise_affine) = true;
  TORCH_ARG(NormRounding, rounding) = NormRounding::kOnce;
};

/// y = weight x / sqrt(mean(x^2) + eps) over the last axis. The arithmetic is in float32 (float64
/// for float64).
class RMSNormImpl : public torch::nn::Cloneable<RMSNormImpl> {
 public:
  explicit RMSNormImpl(const RMSNormOptions& options);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// x [..., dim] -> the same shape.
  torch::Tensor forward(const torch::Tensor& x);

  RMSNormOptions options;
  torch::Tensor weight;  // [dim]; undefined if not affine
};

TORCH_MODULE(RMSNorm);

}  // namespace diffattn::nn
