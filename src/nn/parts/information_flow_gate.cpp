// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/information_flow_gate.h"

#include <vector>

#include "diffattn/ops.h"

namespace diffattn::nn {

using torch::Tensor;

InformationFlowGateImpl::InformationFlowGateImpl(const InformationFlowGateOptions& options_)
    : options(options_) {
  reset();
}

void InformationFlowGateImpl::reset() {
  if (options.dim() < 1) {
    throw_argument_error("dim", "a width of at least 1", std::to_string(options.dim()));
  }
  const int64_t inputs = 2 * options.dim() + (options.attention_input() ? 1 : 0);
  gate = register_module("gate", torch::nn::Linear(inputs, options.dim()));
  torch::nn::init::constant_(gate->bias, options.initial_bias());
}

Tensor InformationFlowGateImpl::forward(const Tensor& x, const Tensor& previous, const Tensor& m) {
  if (m.defined() != options.attention_input()) {
    throw_argument_error("m", options.attention_input() ? "attention weights [..., 1]" : "none",
                         m.defined() ? "a tensor" : "none");
  }
  std::vector<Tensor> inputs{x, previous};
  if (m.defined()) inputs.push_back(m.to(x.scalar_type()));
  const Tensor g = torch::sigmoid(gate(torch::cat(inputs, -1)));
  return previous + g * (x - previous);
}

}  // namespace diffattn::nn
