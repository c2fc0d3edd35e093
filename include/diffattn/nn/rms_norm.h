// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

namespace diffattn::nn {

/// Where a norm of low-precision activations rounds; in float32 and float64 both are the same.
enum class NormRounding {
  /// weight and all are multiplied in float32: one rounding, to the type of x.
  kOnce,
  /// As published Llama and Microsoft code: x / rms is rounded to the type of x, then multiplied by
  /// the weight, so that a float32 weight makes the result float32.
  kBeforeWeight,
};

struct RMSNormOptions {
  /*implicit*/ RMSNormOptions(int64_t dim) : dim_(dim) {}
  /// Width of the last axis.
  TORCH_ARG(int64_t, dim);
  TORCH_ARG(double, eps) = 1e-5;
  /// Whether there is a learned `weight` [dim], at first all ones.
  TORCH_ARG(bool, elementwise_affine) = true;
  TORCH_ARG(NormRounding, rounding) = NormRounding::kOnce;
};

/// y = weight x / sqrt(mean(x^2) + eps) over the last axis; arithmetic in float32 (float64 for
/// float64).
class RMSNormImpl : public torch::nn::Cloneable<RMSNormImpl> {
 public:
  explicit RMSNormImpl(const RMSNormOptions& options);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// x [..., dim] -> the same shape.
  torch::Tensor forward(const torch::Tensor& x);

  RMSNormOptions options;
  torch::Tensor weight;  // [dim]; undefined when not affine
};

TORCH_MODULE(RMSNorm);

}  // namespace diffattn::nn
