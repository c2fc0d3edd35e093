// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/nn/model_config.h"
#include "diffattn/nn/stack.h"

namespace diffattn::nn {

/// Embedding, bidirectional blocks and a final norm: every token sees all tokens of its sequence.
/// `mask.key_lengths` marks right padding, `mask.key_starts` left padding, `mask.cu_seqlens_q`
/// packed sequences. Results for padding tokens are meaningless.
class EncoderImpl : public StackImpl {
 public:
  /// Makes `config.num_hidden_layers` blocks and draws parameters as CausalLM does.
  explicit EncoderImpl(const ModelConfig& config);

  const ModelConfig config;
};
TORCH_MODULE(Encoder);

}  // namespace diffattn::nn
