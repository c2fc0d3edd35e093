// SPDX-License-Identifier: Apache-2.0
#include "nn/models/stack_parts.h"

namespace diffattn::nn {
namespace {

DiffBlock make_block(const ModelConfig& config, const StackOptions& options, int64_t layer) {
  const auto role = options.causal() ? AttentionRole::kCausal : AttentionRole::kBidirectional;
  const auto block = DiffBlockOptions(config.hidden_size, config.intermediate_size)
                         .mlp_bias(config.mlp_bias)
                         .norm_eps(config.rms_norm_eps)
                         .norm_rounding(NormRounding::kBeforeWeight);
  return DiffBlock(
      block, make_attention(config, layer, role),
      options.cross_attention() ? make_attention(config, layer, AttentionRole::kCross) : nullptr);
}

}  // namespace

StackParts make_stack_parts(const ModelConfig& config, const StackOptions& options) {
  if (config.family != ModelFamily::kLlama) {
    if (!options.causal() || options.cross_attention()) {
      throw_argument_error("family", "Llama's for encoders and encoder-decoders",
                           "a published decoder's");
    }
    return make_published_parts(config);
  }
  StackParts parts;
  for (int64_t layer = 0; layer < options.layers(); ++layer) {
    parts.layers.push_back(make_block(config, options, layer).ptr());
  }
  parts.norm = RMSNorm(RMSNormOptions(config.hidden_size)
                           .eps(config.rms_norm_eps)
                           .rounding(NormRounding::kBeforeWeight));
  return parts;
}

}  // namespace diffattn::nn
