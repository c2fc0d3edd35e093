// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/model_config.h"
#include "diffattn/nn/multihead_diff_attention.h"
#include "diffattn/nn/presets.h"

namespace diffattn::nn {
namespace {

/// Returns the preset itself, or the most similar one that supports cross-attention.
std::string cross_attention_preset(const std::string& preset) {
  if (preset == "dint") return "microsoft_v1";
  return preset == "introspective" ? "transformer" : preset;
}

std::shared_ptr<AttentionLayer> ablated_preset(const std::string& preset,
                                               const PresetOptions& options,
                                               const ModelConfig& config) {
  TORCH_CHECK(preset != "dint", "head_norm, lambda_init: expected an attention other than dint");
  MultiheadDiffAttentionOptions point = preset_options(preset, options);
  TORCH_CHECK(point.kind() != AttentionKind::kPlain,
              "head_norm, lambda_init: expected an attention with two maps, got ", preset);
  TORCH_CHECK(config.head_norm || point.head_norm() != HeadNorm::kNone,
              "head_norm: expected an attention with a head norm, got ", preset);
  TORCH_CHECK(!config.lambda_init || point.lambda() != LambdaKind::kToken,
              "lambda_init: expected an attention whose lambda depends on lambda_init, got ",
              preset);
  if (!config.head_norm) point.head_norm(HeadNorm::kNone);
  if (config.lambda_init) point.lambda_init(config.lambda_init);
  return std::make_shared<MultiheadDiffAttentionImpl>(point);
}

}  // namespace

std::shared_ptr<AttentionLayer> make_attention(const ModelConfig& config, int64_t layer,
                                               AttentionRole role) {
  auto options = PresetOptions(config.hidden_size, config.num_attention_heads)
                     .num_kv_heads(config.num_key_value_heads)
                     .head_dim(config.head_dim)
                     .layer_index(layer)
                     .norm_eps(config.rms_norm_eps)
                     .lambda_std(config.lambda_std_dev)
                     .causal(role == AttentionRole::kCausal)
                     .cross_attention(role == AttentionRole::kCross)
                     .rotary(config.rotary);
  if (config.attention_bias) options.bias(true);  // default: as published
  const bool crosses = role == AttentionRole::kCross;
  const std::string preset = crosses ? cross_attention_preset(config.attention) : config.attention;
  return config.ablated() ? ablated_preset(preset, options, config) : make_preset(preset, options);
}

}  // namespace diffattn::nn
