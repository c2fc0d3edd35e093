// SPDX-License-Identifier: Apache-2.0
#include "train/new_model.h"

namespace diffattn::train {

nn::ModelConfig model_config_of(const RunConfig& config) {
  const RunConfig::Model& m = config.model;
  nn::ModelConfig c;
  c.attention = m.attention;
  c.vocab_size = m.vocab_size;
  c.hidden_size = m.hidden_size;
  c.intermediate_size = m.intermediate_size;
  c.num_hidden_layers = m.num_hidden_layers;
  c.num_attention_heads = m.num_attention_heads;
  c.num_key_value_heads = m.num_key_value_heads;
  c.head_dim = m.head_dim;
  c.max_position_embeddings = m.max_position_embeddings;
  c.rms_norm_eps = m.rms_norm_eps;
  c.initializer_range = m.initializer_range;
  c.lambda_std_dev = m.lambda_std_dev;
  c.tie_word_embeddings = m.tie_word_embeddings;
  c.rope_parameters.rope_theta(m.rope_theta);
  c.head_norm = m.head_norm;
  if (m.lambda_init != -1.0) c.lambda_init = m.lambda_init;
  return c;
}

nn::CausalLM new_model(const RunConfig& config) {
  torch::manual_seed(static_cast<uint64_t>(config.seed));
  return nn::CausalLM(model_config_of(config));
}

}  // namespace diffattn::train
