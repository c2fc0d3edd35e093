// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/nn/model_config.h"
#include "diffattn/nn/stack.h"

namespace diffattn::nn {

/// Embedding, bidirectional blocks, norm: every token sees all tokens of its sequence. Padding is
/// told by `mask.key_lengths` (right) or `mask.key_starts` (left), packed sequences by
/// `mask.cu_seqlens_q`; what the model gives for padding tokens means nothing.
class EncoderImpl : public StackImpl {
 public:
  /// Parameters are drawn as CausalLM's. `config.num_hidden_layers` blocks.
  explicit EncoderImpl(const ModelConfig& config);

  const ModelConfig config;
};
TORCH_MODULE(Encoder);

}  // namespace diffattn::nn
