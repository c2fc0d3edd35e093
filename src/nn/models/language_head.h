// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/nn/model_config.h"
#include "diffattn/nn/stack.h"

namespace diffattn::nn {

/// Registers `lm_head` in a model and returns it; null if it is tied to the embedding.
inline torch::nn::Linear register_language_head(torch::nn::Module& model,
                                                const ModelConfig& config) {
  if (config.tie_word_embeddings) return nullptr;
  return model.register_module(
      "lm_head", torch::nn::Linear(
                     torch::nn::LinearOptions(config.hidden_size, config.vocab_size).bias(false)));
}

/// Draws the parameters of a model and zeroes the embedding of the padding token.
inline void initialize_model(torch::nn::Module& model, const ModelConfig& config,
                             const torch::nn::Embedding& embedding) {
  initialize_parameters(model, config.initializer_range, config.lambda_std_dev);
  if (!config.pad_token_id) return;
  const torch::NoGradGuard no_grad;
  embedding->weight[*config.pad_token_id].zero_();
}

}  // namespace diffattn::nn
