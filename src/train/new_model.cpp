// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/new_model.h"

#include <algorithm>

#include "diffattn/nn/cross_entropy.h"

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
  c.rotary.theta(m.rope_theta);
  return c;
}

nn::CausalLM new_model(const RunConfig& config) {
  torch::manual_seed(static_cast<uint64_t>(config.seed));
  return nn::CausalLM(model_config_of(config));
}

MemoryEstimate estimate_memory(const RunConfig& config, int64_t parameter_count) {
  const RunConfig::Model& m = config.model;
  const int64_t tokens = config.train.batch_size * config.train.seq_len;
  const int64_t activation_bytes = config.train.dtype == "bfloat16" ? 2 : 4;
  const int64_t heads = m.num_attention_heads * m.head_dim;
  const int64_t kv = m.num_key_value_heads * m.head_dim;
  // Per token and layer: both norms' inputs and outputs; q, k before and after rotation, v; output
  // of the attention and, for differential heads, its second map; gate, up and their product.
  const int64_t layer = 4 * m.hidden_size + 2 * heads + 2 * kv + kv + 2 * heads + m.hidden_size +
                        4 * m.intermediate_size;
  const int64_t layers = config.train.activation_checkpointing ? 1 : m.num_hidden_layers;
  const int64_t inputs = config.train.activation_checkpointing ? m.num_hidden_layers : 0;
  MemoryEstimate estimate;
  estimate.parameters = parameter_count * 4;
  estimate.gradients = parameter_count * 4;
  estimate.optimizer = parameter_count * 8;
  estimate.activations =
      tokens * (layer * layers * activation_bytes + (inputs + 3) * m.hidden_size * 4);
  const int64_t chunk =
      std::min(nn::CrossEntropyOptions().chunk_bytes(), tokens * m.vocab_size * int64_t{4});
  estimate.logits = 2 * chunk + m.vocab_size * m.hidden_size * 4;
  return estimate;
}

}  // namespace diffattn::train
