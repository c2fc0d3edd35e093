// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "diffattn/nn/attention_layer.h"
#include "diffattn/nn/model_config.h"
#include "diffattn/nn/rms_norm.h"
#include "diffattn/nn/swiglu.h"

namespace diffattn::nn {

/// One cache per layer.
using KvCaches = std::vector<KvCache>;

/// What a model reads and what it should keep on the way.
struct DecoderInput {
  torch::Tensor ids;  // [B, N] int64; packed sequences [total] with mask.cu_seqlens_q
  AttentionMask mask;
  std::optional<torch::Tensor> positions;         // as AttentionInput::positions
  KvCaches* caches = nullptr;                     // one per layer: ids are the newest tokens
  std::vector<AttentionTrace>* traces = nullptr;  // gets one entry per layer
  bool keep_hidden = false;
};

struct DecoderOutput {
  torch::Tensor last;  // [B, N, E] after the last norm
  std::vector<torch::Tensor>
      hidden;  // keep_hidden: embeddings, then after each layer (last: normed)
};

/// x + attention(norm(x)), then x + mlp(norm(x)), with Llama's names.
class DecoderLayerImpl : public torch::nn::Module {
 public:
  DecoderLayerImpl(const ModelConfig& config, int64_t layer);
  torch::Tensor forward(const AttentionInput& input, AttentionTrace* trace = nullptr);

  std::shared_ptr<AttentionLayer> self_attn;
  SwiGLU mlp{nullptr};
  RMSNorm input_layernorm{nullptr}, post_attention_layernorm{nullptr};
};
TORCH_MODULE(DecoderLayer);

/// Embedding, layers, norm.
class DecoderImpl : public torch::nn::Module {
 public:
  explicit DecoderImpl(const ModelConfig& config);
  DecoderOutput forward(const DecoderInput& input);

  /// Layers keep only their inputs for the backward pass and compute the rest again there.
  void checkpoint_activations(bool on) { checkpointed_ = on; }

  torch::nn::Embedding embed_tokens{nullptr};
  std::vector<DecoderLayer> layers;
  RMSNorm norm{nullptr};

 private:
  bool checkpointed_ = false;
};
TORCH_MODULE(Decoder);

/// A decoder with a head over the vocabulary. With the attention "diffllama" it is Hugging Face's
/// DiffLlama, with "transformer" its Llama: same parameter names and numbers.
class CausalLMImpl : public torch::nn::Module {
 public:
  /// Parameters are drawn from torch's default generator: N(0, initializer_range^2) for matrices
  /// and embeddings (0 for the padding token), N(0, lambda_std_dev^2) for lambda vectors, 1 for
  /// norms, 0 for biases.
  explicit CausalLMImpl(const ModelConfig& config);

  DecoderOutput forward(const DecoderInput& input) { return model->forward(input); }
  /// [..., E] -> [..., V].
  torch::Tensor logits(const torch::Tensor& hidden);
  /// [V, E]: the head's weight, the embedding's when tied.
  torch::Tensor head_weight() const;

  const ModelConfig config;
  Decoder model{nullptr};
  torch::nn::Linear lm_head{nullptr};  // null when tied
};
TORCH_MODULE(CausalLM);

/// Draws every parameter of `module` anew by the rule of CausalLM, in the order of their names in
/// the module.
void initialize_parameters(torch::nn::Module& module, double initializer_range,
                           double lambda_std_dev);

}  // namespace diffattn::nn
