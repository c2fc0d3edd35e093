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
  const char* const changed = config.head_norm ? "lambda_init" : "head_norm";
  const auto refuse = [&](const char* option, const char* expected) {
    throw_argument_error(option, expected, preset);
  };
  if (preset == "dint") refuse(changed, "an attention other than dint");
  MultiheadDiffAttentionOptions point = preset_options(preset, options);
  if (point.kind() == AttentionKind::kPlain) refuse(changed, "an attention with two maps");
  if (!config.head_norm && point.head_norm() == HeadNorm::kNone) {
    refuse("head_norm", "an attention with a head norm");
  }
  if (config.lambda_init && point.lambda() == LambdaKind::kToken) {
    refuse("lambda_init", "an attention whose lambda depends on lambda_init");
  }
  if (!config.head_norm) point.head_norm(HeadNorm::kNone);
  if (config.lambda_init) point.lambda_init(config.lambda_init);
  return std::make_shared<MultiheadDiffAttentionImpl>(point);
}

}  // namespace

std::shared_ptr<AttentionLayer> make_attention(const ModelConfig& config, int64_t layer,
                                               AttentionRole role) {
  auto options = PresetOptions(config.hidden_size, config.num_attention_heads)
                     .num_key_value_heads(config.num_key_value_heads)
                     .head_dim(config.head_dim)
                     .layer_index(layer)
                     .rms_norm_eps(config.rms_norm_eps)
                     .lambda_std_dev(config.lambda_std_dev)
                     .causal(role == AttentionRole::kCausal)
                     .cross_attention(role == AttentionRole::kCross)
                     .rope_parameters(config.rope_parameters);
  if (config.attention_bias) options.attention_bias(true);  // default: as published
  const bool crosses = role == AttentionRole::kCross;
  const std::string preset = crosses ? cross_attention_preset(config.attention) : config.attention;
  return config.ablated() ? ablated_preset(preset, options, config) : make_preset(preset, options);
}

}  // namespace diffattn::nn
