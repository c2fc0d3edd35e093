// SPDX-License-Identifier: Apache-2.0
#include "train/tasks/round_weights.h"

namespace diffattn::train {

int64_t round_weights(torch::nn::Module& model, int64_t bits) {
  const torch::NoGradGuard no_grad;
  const auto most = static_cast<double>((int64_t{1} << (bits - 1)) - 1);
  int64_t matrices = 0;
  for (const auto& parameter : model.named_parameters()) {
    const torch::Tensor& weight = parameter.value();  // [out, in]
    const bool in_layer = parameter.key().find("layers.") != std::string::npos;
    // No product reads Mamba's A_log [channels, states]. The projection to lambda is small.
    const bool exact =
        parameter.key().ends_with("A_log") || parameter.key().find("lambda") != std::string::npos;
    if (weight.dim() != 2 || !in_layer || exact) continue;
    const torch::Tensor largest = weight.abs().amax(/*dim=*/1, /*keepdim=*/true);
    // A channel of zeros stays zero with any scale.
    const torch::Tensor scale = torch::where(largest > 0, largest / most, 1.0);
    weight.copy_((weight / scale).round_() * scale);
    ++matrices;
  }
  return matrices;
}

}  // namespace diffattn::train
