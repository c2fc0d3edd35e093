// SPDX-License-Identifier: Apache-2.0
#include "nn/parts/pre_norm_layer.h"

#include "nn/parts/residual_stream.h"

namespace diffattn::nn {

PreNormLayerImpl::PreNormLayerImpl(const PreNormParts& parts)
    : input_layernorm(parts.input_norm), post_attention_layernorm(parts.post_norm), mlp(parts.mlp) {
  self_attn = parts.mixer;
  register_module("input_layernorm", input_layernorm.module());
  register_module(parts.mixer_name, self_attn);
  register_module("post_attention_layernorm", post_attention_layernorm.module());
  register_module("mlp", mlp);
}

void PreNormLayerImpl::run(ResidualStream& stream, const AttentionInput& input,
                           const AttentionInput* cross, AttentionTrace* trace,
                           AttentionTrace* /*cross_trace*/) {
  if (cross != nullptr) throw_argument_error("cross", "none without cross-attention", "an input");
  AttentionInput normed = input;
  normed.x = input_layernorm.of(stream);
  stream.add(self_attn->forward(normed, trace));
  stream.add(mlp->forward(post_attention_layernorm.of(stream)));
}

}  // namespace diffattn::nn
