// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/model_config.h"
#include "diffattn/nn/presets.h"

namespace diffattn::nn {

std::shared_ptr<AttentionLayer> make_attention(const ModelConfig& config, int64_t layer) {
  auto options = PresetOptions(config.hidden_size, config.num_attention_heads)
                     .num_kv_heads(config.num_key_value_heads)
                     .head_dim(config.head_dim)
                     .layer_index(layer)
                     .norm_eps(config.rms_norm_eps)
                     .lambda_std(config.lambda_std_dev)
                     .rotary(config.rotary);
  if (config.attention_bias) options.bias(true);  // else as published
  return make_preset(config.attention, options);
}

}  // namespace diffattn::nn
