// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>
#include <vector>

#include "diffattn/nn/attention_layer.h"
#include "diffattn/nn/block.h"
#include "diffattn/nn/model_config.h"
#include "diffattn/nn/rms_norm.h"
#include "diffattn/ops.h"

namespace diffattn::nn {

/// One cache per layer.
using KvCaches = std::vector<KvCache>;

/// What a stack of blocks reads and what it should keep on the way.
struct ModelInput {
  torch::Tensor ids = {};  // [B, N] int64; packed sequences [total] with mask.cu_seqlens_q
  /// [B, N, E]; packed [total, E]: embedded tokens, in place of ids.
  std::optional<torch::Tensor> embedded = {};
  AttentionMask mask = {};
  std::optional<torch::Tensor> positions = {};    // as AttentionInput::positions
  KvCaches* caches = nullptr;                     // one per layer: ids are the newest tokens
  std::vector<AttentionTrace>* traces = nullptr;  // gets one entry per layer
  bool keep_hidden = false;

  // Of a stack with cross-attention only.
  std::optional<torch::Tensor> context = {};  // [B, M, E]; packed [total_k, E]
  AttentionMask context_mask = {};            // who may see which column of the context
  KvCaches* cross_caches = nullptr;           // one per layer: filled from the context when empty
  std::vector<AttentionTrace>* cross_traces = nullptr;
};

struct ModelOutput {
  torch::Tensor last = {};  // [B, N, E] after the last norm
  /// keep_hidden: embeddings, then after each layer (last: normed)
  std::vector<torch::Tensor> hidden = {};
};

struct StackOptions {
  TORCH_ARG(int64_t, layers) = 1;
  /// Whether a token sees only those before it.
  TORCH_ARG(bool, causal) = true;
  /// Whether each block also attends to a context.
  TORCH_ARG(bool, cross_attention) = false;
  /// Whether it has `embed_tokens` of its own.
  TORCH_ARG(bool, embedding) = true;
};

/// Embedding, blocks, norm: what every model here is made of. Parameters have Llama's names:
/// embed_tokens, layers.0, layers.1, ..., norm.
class StackImpl : public torch::nn::Module {
 public:
  StackImpl(const ModelConfig& config, const StackOptions& options);
  ModelOutput forward(const ModelInput& input);

  /// Blocks keep only their inputs and, of their attention, what `keep` says for the backward pass
  /// and compute the rest again there. Traces are then refused wherever gradients are recorded:
  /// what they hold would not be the graph's.
  void checkpoint_activations(bool on, KeepAttention keep = KeepAttention::kResults) {
    checkpointed_ = on;
    keep_ = keep;
  }

  torch::nn::Embedding embed_tokens{nullptr};  // null without StackOptions::embedding
  std::vector<DiffBlock> layers;
  RMSNorm norm{nullptr};

 private:
  void check_input(const ModelInput& input) const;

  bool checkpointed_ = false;
  KeepAttention keep_ = KeepAttention::kResults;
};
TORCH_MODULE(Stack);

/// The embedding of a model's tokens. As in transformers, the padding token's gets no gradient.
torch::nn::Embedding make_embedding(const ModelConfig& config);

/// Draws every parameter of `module` anew by the rule of CausalLM, in the order of their names in
/// the module.
void initialize_parameters(torch::nn::Module& module, double initializer_range,
                           double lambda_std_dev);

/// Row b of every cache becomes what row `rows[b]` was.
void select_rows(KvCaches& caches, const torch::Tensor& rows);

}  // namespace diffattn::nn
