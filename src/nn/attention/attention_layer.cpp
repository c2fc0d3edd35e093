// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/attention_layer.h"

#include "nn/attention/step_attention.h"
#include "ops/layers/token_layer.h"

namespace diffattn::nn {

int64_t AttentionLayer::parameter_count() const {
  int64_t count = 0;
  for (const torch::Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

std::optional<TokenAttention> AttentionLayer::token_attention(const AttentionInput&) const {
  return {};
}

TokenPast AttentionLayer::token_past(const AttentionInput&) { return {}; }

std::optional<StepAttention> AttentionLayer::step_attention() { return {}; }

void scale_lambda(torch::nn::Module& model, double factor) {
  for (const auto& module : model.modules()) {
    if (auto* layer = dynamic_cast<AttentionLayer*>(module.get())) layer->scale_lambda(factor);
  }
}

}  // namespace diffattn::nn
