// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "diffattn/nn/attention_layer.h"
#include "diffattn/nn/rotary.h"

namespace diffattn::nn {

/// What decides a model's parameters and numbers: the keys of Hugging Face's config.json for
/// DiffLlama and Llama, under their names, and `attention`, which they say by `model_type`.
/// Head counts are those of the equal-size Transformer: sub-heads of a differential layer.
struct ModelConfig {
  std::string attention = "diffllama";  // a preset of the family; "transformer" is Llama
  int64_t vocab_size = 32000;
  int64_t hidden_size = 2048;
  int64_t intermediate_size = 8192;
  int64_t num_hidden_layers = 16;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 32;
  int64_t head_dim = 64;
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-5;
  double initializer_range = 0.02;
  double lambda_std_dev = 0.1;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  RotaryOptions rotary = RotaryOptions().style(RotaryStyle::kHalfSplit);
  std::optional<int64_t> pad_token_id, bos_token_id, eos_token_id;
};

/// The attention of layer `layer` (counted from 0) of a model. Throws c10::Error naming the option
/// that cannot be.
std::shared_ptr<AttentionLayer> make_attention(const ModelConfig& config, int64_t layer);

}  // namespace diffattn::nn
