// SPDX-License-Identifier: Apache-2.0
//
// The stacks of published decoders: a list of layer kinds, and for each family the parts that its
// layers have in common.

#include <functional>

#include "diffattn/nn/multihead_diff_attention.h"
#include "diffattn/nn/presets.h"
#include "nn/models/layer_kinds.h"
#include "nn/models/stack_parts.h"
#include "nn/parts/mamba.h"
#include "nn/parts/pre_norm_layer.h"

namespace diffattn::nn {
namespace {

using Mixer = std::shared_ptr<AttentionLayer>;

PresetOptions preset_sizes(const ModelConfig& c, int64_t layer) {
  return PresetOptions(c.hidden_size, c.num_attention_heads)
      .num_key_value_heads(c.num_key_value_heads)
      .head_dim(c.head_dim)
      .layer_index(layer)
      .lambda_std_dev(c.lambda_std_dev)
      .attention_bias(c.attention_bias)
      .rms_norm_eps(c.attn_rms_norm_eps)
      .rope_parameters(c.rope_parameters);
}

/// Grouped differential attention. With as many noise heads as signal heads it is V1.
Mixer motif_mixer(const ModelConfig& c, LayerKind, int64_t layer) {
  const auto sizes = preset_sizes(c, layer);
  const int64_t noise = c.num_noise_heads;
  if (noise == 0 || 2 * noise == c.num_attention_heads) return make_preset("motif_2_6b", sizes);
  if (noise >= c.num_attention_heads || c.num_attention_heads % noise != 0) {
    throw_argument_error("num_noise_heads",
                         "a divisor of the " + std::to_string(c.num_attention_heads) +
                             " heads, smaller than they are",
                         std::to_string(noise));
  }
  return std::make_shared<MultiheadDiffAttentionImpl>(preset_options("motif_2_12_7b", sizes)
                                                          .num_heads(c.num_attention_heads - noise)
                                                          .noise_heads(noise));
}

Mixer sambay_attention(const ModelConfig& c, LayerKind kind, int64_t layer) {
  auto options = preset_options("phi4_flash", preset_sizes(c, layer));
  if (kind == LayerKind::kWindowAttention) options.window(c.sliding_window);
  if (kind == LayerKind::kOwnerAttention) options.key_sharing(KeySharing::kOwner);
  if (kind == LayerKind::kReaderAttention) {
    ParameterNames names = options.names();
    names.q = names.qkv;
    names.qkv.clear();
    options.key_sharing(KeySharing::kReader).names(names);
  }
  return std::make_shared<MultiheadDiffAttentionImpl>(options);
}

Mixer sambay_mixer(const ModelConfig& c, LayerKind kind, int64_t layer) {
  const int64_t inner = c.mamba_expand * c.hidden_size;
  if (kind == LayerKind::kGatedMemory) {
    return std::make_shared<GatedMemoryImpl>(c.hidden_size, inner, c.mamba_proj_bias);
  }
  if (has_maps(kind)) return sambay_attention(c, kind, layer);
  auto options = MambaOptions(c.hidden_size)
                     .inner(inner)
                     .state(c.mamba_d_state)
                     .taps(c.mamba_d_conv)
                     .conv_bias(c.mamba_conv_bias)
                     .proj_bias(c.mamba_proj_bias)
                     .shares_memory(kind == LayerKind::kMambaMemory);
  if (c.mamba_dt_rank > 0) options.rank(c.mamba_dt_rank);
  return std::make_shared<MambaImpl>(options);
}

StreamNorm rms_norm_of(const ModelConfig& c) {
  return RMSNorm(
      RMSNormOptions(c.hidden_size).eps(c.rms_norm_eps).rounding(NormRounding::kBeforeWeight));
}

StreamNorm layer_norm_of(const ModelConfig& c) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.hidden_size}).eps(c.rms_norm_eps));
}

/// Options that all layers of a family share.
struct Family {
  const char* mixer_name;
  const char* norm_name;
  Mixer (*mixer)(const ModelConfig&, LayerKind, int64_t layer);
  StreamNorm (*norm)(const ModelConfig&);
  std::shared_ptr<FeedForward> (*mlp)(const ModelConfig&);
};

template <class Layer>
std::shared_ptr<FeedForward> make_mlp(const ModelConfig& c) {
  return std::make_shared<Layer>(c.hidden_size, c.intermediate_size, c.mlp_bias);
}

constexpr Family kMotif{"self_attn", "norm", motif_mixer, rms_norm_of, make_mlp<PolyGLUImpl>};
constexpr Family kSambaY{"attn", "final_layernorm", sambay_mixer, layer_norm_of,
                         make_mlp<MergedSwiGLUImpl>};

}  // namespace

StackParts make_published_parts(const ModelConfig& config) {
  const Family& family = config.family == ModelFamily::kMotif ? kMotif : kSambaY;
  StackParts parts;
  int64_t layer = 0;
  for (const LayerKind kind : layer_kinds(config)) {
    parts.layers.push_back(std::make_shared<PreNormLayerImpl>(
        PreNormParts{.input_norm = family.norm(config),
                     .mixer_name = family.mixer_name,
                     .mixer = family.mixer(config, kind, layer++),
                     .post_norm = family.norm(config),
                     .mlp = family.mlp(config)}));
  }
  parts.norm_name = family.norm_name;
  parts.norm = family.norm(config);
  return parts;
}

}  // namespace diffattn::nn
