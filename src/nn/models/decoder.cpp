// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/decoder.h"

#include "diffattn/ops_layers.h"
#include "nn/models/language_head.h"
#include "nn/models/token_ids.h"

namespace diffattn::nn {

CausalLMImpl::CausalLMImpl(const ModelConfig& model_config) : config(model_config) {
  model = register_module("model", Decoder(config));
  lm_head = register_language_head(*this, config);
  initialize_model(*this, config, model->embed_tokens);
}

torch::Tensor CausalLMImpl::head_weight() const {
  return lm_head.is_empty() ? model->embed_tokens->weight : lm_head->weight;
}

torch::Tensor CausalLMImpl::logits(const DecoderInput& input) {
  return logits(forward(input).last);
}

torch::Tensor CausalLMImpl::logits(const torch::Tensor& hidden) {
  check_hidden_states(hidden, head_weight());
  return diffattn::linear(hidden, head_weight());
}

}  // namespace diffattn::nn
