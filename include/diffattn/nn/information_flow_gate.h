// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

namespace diffattn::nn {

struct InformationFlowGateOptions {
  /*implicit*/ InformationFlowGateOptions(int64_t dim) : dim_(dim) {}
  TORCH_ARG(int64_t, dim);
  /// Makes the gate also read the attention weight m of a token (`token_weights`).
  TORCH_ARG(bool, attention_input) = false;
  /// Initial bias of every gate. 1 favours the new features: sigmoid(1) = 0.73.
  TORCH_ARG(double, initial_bias) = 1.0;
};

/// Blends new features with earlier ones, element by element:
/// y = g x + (1 - g) previous, g = sigmoid(W [x; previous; m] + b).
class InformationFlowGateImpl : public torch::nn::Cloneable<InformationFlowGateImpl> {
 public:
  explicit InformationFlowGateImpl(const InformationFlowGateOptions& options);
  void reset() override;

  /// x, previous [..., dim]; m [..., 1] if and only if `attention_input`.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& previous,
                        const torch::Tensor& m = {});

  InformationFlowGateOptions options;
  torch::nn::Linear gate{nullptr};  // [dim, 2 dim] or [dim, 2 dim + 1]
};

TORCH_MODULE(InformationFlowGate);

}  // namespace diffattn::nn
