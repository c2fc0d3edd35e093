// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "diffattn/nn/stack_layer.h"
#include "diffattn/nn/stream_norm.h"
#include "nn/parts/feed_forward.h"

namespace diffattn::nn {

/// The parts of a PreNormLayer. `mixer_name` is the name under which the mixer is registered.
struct PreNormParts {
  StreamNorm input_norm = {};
  std::string mixer_name = "self_attn";
  std::shared_ptr<AttentionLayer> mixer = {};
  StreamNorm post_norm = {};
  std::shared_ptr<FeedForward> mlp = {};
};

/// A layer of a published model, from parts: h = x + mixer(norm(x)); y = h + mlp(norm(h)). The
/// other parameters are named input_layernorm, post_attention_layernorm and mlp.
class PreNormLayerImpl : public StackLayer {
 public:
  explicit PreNormLayerImpl(const PreNormParts& parts);
  void run(ResidualStream& stream, const AttentionInput& input, const AttentionInput* cross,
           AttentionTrace* trace, AttentionTrace* cross_trace) override;

  StreamNorm input_layernorm, post_attention_layernorm;
  std::shared_ptr<FeedForward> mlp;
};
TORCH_MODULE(PreNormLayer);

}  // namespace diffattn::nn
