// SPDX-License-Identifier: Apache-2.0
#include "train/lambda_values.h"

#include "diffattn/nn/multihead_diff_attention.h"

namespace diffattn::train {

Values lambda_values(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  Values values;
  int64_t layer = 0;
  for (const auto& module : model.modules()) {
    if (dynamic_cast<nn::AttentionLayer*>(module.get()) == nullptr) continue;
    const int64_t index = layer++;
    auto* attention = dynamic_cast<nn::MultiheadDiffAttentionImpl*>(module.get());
    if (attention == nullptr || attention->options.kind() == nn::AttentionKind::kPlain) continue;
    if (attention->options.lambda() == nn::LambdaKind::kToken) continue;
    const torch::Tensor lambda =
        attention->lambda(attention->parameters().front(), torch::kFloat32);
    values.emplace_back("layer." + std::to_string(index) + ".lambda", lambda.item<double>());
  }
  return values;
}

}  // namespace diffattn::train
