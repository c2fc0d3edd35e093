// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/nn/model_config.h"
#include "diffattn/nn/stack.h"

namespace diffattn::nn {

using DecoderInput = ModelInput;
using DecoderOutput = ModelOutput;

/// Embedding, causal blocks and a final norm.
class DecoderImpl : public StackImpl {
 public:
  explicit DecoderImpl(const ModelConfig& config)
      : StackImpl(config, StackOptions().layers(config.num_hidden_layers)) {}
};
TORCH_MODULE(Decoder);

/// A decoder with a language-model head. With the attention "diffllama" it is Hugging Face's
/// DiffLlama, with "transformer" its Llama: the same parameter names and the same results.
class CausalLMImpl : public torch::nn::Module {
 public:
  /// Draws parameters from torch's default generator: N(0, initializer_range^2) for matrices and
  /// embeddings (0 for the padding token), N(0, lambda_std_dev^2) for lambda vectors, 1 for norms,
  /// 0 for biases.
  explicit CausalLMImpl(const ModelConfig& config);

  DecoderOutput forward(const DecoderInput& input) { return model->forward(input); }
  /// Runs the model and returns the logits of every position, [B, N, V] (packed [total, V]). Throws
  /// diffattn::Error for ids of a wrong type or shape and, on the CPU, outside the vocabulary.
  torch::Tensor logits(const DecoderInput& input);
  /// Applies the head to hidden states of forward(): [..., E] -> [..., V].
  torch::Tensor logits(const torch::Tensor& hidden);
  /// Returns the weight of the head, [V, E]; the embedding's weight if tied.
  torch::Tensor head_weight() const;

  const ModelConfig config;
  Decoder model{nullptr};
  torch::nn::Linear lm_head{nullptr};  // null if tied
};
TORCH_MODULE(CausalLM);

}  // namespace diffattn::nn
