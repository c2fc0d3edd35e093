// SPDX-License-Identifier: Apache-2.0
#include "train/new_model.h"

#include "diffattn/models/model_folder.h"

namespace diffattn::train {
namespace {

/// Returns the configuration of the model that a run starts from, with the run's longest row.
nn::ModelConfig config_of_folder(const RunConfig::Model& m) {
  nn::ModelConfig c = models::read_model_config(m.from);
  if (m.max_position_embeddings > 0) c.max_position_embeddings = m.max_position_embeddings;
  return c;
}

}  // namespace

void take_sizes_of_folder(RunConfig& config) {
  RunConfig::Model& m = config.model;
  if (m.from.empty()) return;
  const nn::ModelConfig c = config_of_folder(m);
  if (c.kind != nn::ModelKind::kDecoder || !c.labels.empty()) {
    throw ConfigError("model.from: expected the folder of a causal language model, got '" + m.from +
                      "'");
  }
  m.attention = c.attention;
  m.vocab_size = c.vocab_size;
  m.hidden_size = c.hidden_size;
  m.intermediate_size = c.intermediate_size;
  m.num_hidden_layers = c.num_hidden_layers;
  m.num_attention_heads = c.num_attention_heads;
  m.num_key_value_heads = c.num_key_value_heads;
  m.head_dim = c.head_dim;
  m.max_position_embeddings = c.max_position_embeddings;
  m.tie_word_embeddings = c.tie_word_embeddings;
}

nn::ModelConfig model_config_of(const RunConfig& config) {
  const RunConfig::Model& m = config.model;
  if (!m.from.empty()) return config_of_folder(m);
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
  const nn::ModelConfig model = model_config_of(config);
  if (config.model.from.empty()) return nn::CausalLM(model);
  nn::CausalLM loaded = models::load_causal_lm(config.model.from, model);
  loaded->train();
  return loaded;
}

}  // namespace diffattn::train
