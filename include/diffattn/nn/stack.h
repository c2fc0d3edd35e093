// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <memory>
#include <optional>
#include <vector>

#include "diffattn/nn/attention_layer.h"
#include "diffattn/nn/block.h"
#include "diffattn/nn/model_config.h"
#include "diffattn/nn/rms_norm.h"
#include "diffattn/nn/stack_layer.h"
#include "diffattn/nn/stream_norm.h"
#include "diffattn/ops.h"

namespace diffattn::nn {

/// One cache per layer.
using KvCaches = std::vector<KvCache>;

/// The input of a stack of blocks, and the intermediate results that it should return.
struct ModelInput {
  torch::Tensor ids = {};  // [B, N] int64; packed sequences [total] with mask.cu_seqlens_q
  /// Embedded tokens [B, N, E] (packed [total, E]), instead of ids.
  std::optional<torch::Tensor> embedded = {};
  AttentionMask mask = {};
  std::optional<torch::Tensor> positions = {};    // as AttentionInput::positions
  KvCaches* caches = nullptr;                     // one per layer; ids are then the newest tokens
  std::vector<AttentionTrace>* traces = nullptr;  // receives one entry per layer
  bool keep_hidden = false;
  /// Computes ModelOutput::last of the last token alone, [B, 1, E]. Layers behind the last one with
  /// a cache then run on that token only. Not with keep_hidden or packed sequences.
  bool last_only = false;

  // Only for a stack with cross-attention.
  std::optional<torch::Tensor> context = {};  // [B, M, E]; packed [total_k, E]
  AttentionMask context_mask = {};            // masks of the cross-attention
  KvCaches* cross_caches = nullptr;           // one per layer; filled from the context if empty
  std::vector<AttentionTrace>* cross_traces = nullptr;
};

struct ModelOutput {
  torch::Tensor last = {};  // [B, N, E] after the last norm
  /// With keep_hidden: the embeddings, then the output of each layer; the last one after the norm.
  std::vector<torch::Tensor> hidden = {};
};

struct StackOptions {
  TORCH_ARG(int64_t, layers) = 1;
  /// Each token sees only itself and earlier tokens.
  TORCH_ARG(bool, causal) = true;
  /// Gives each block a cross-attention to a context.
  TORCH_ARG(bool, cross_attention) = false;
  /// Gives the stack its own `embed_tokens`.
  TORCH_ARG(bool, embedding) = true;
};

/// Embedding, layers and a final norm: the common part of all models. Parameters have the names of
/// the model's family; for Llama's they are embed_tokens, layers.0, layers.1, ..., norm.
class StackImpl : public torch::nn::Module {
 public:
  StackImpl(const ModelConfig& config, const StackOptions& options);
  /// Throws diffattn::Error for ids of a wrong type or shape and, on the CPU, outside the
  /// vocabulary.
  ModelOutput forward(const ModelInput& input);

  /// Switches activation checkpointing on or off. Blocks then save only their inputs and the
  /// attention tensors that `keep` asks for, and the backward pass runs each block a second time.
  /// `forward` throws if it should record both traces and gradients: the tensors of a trace would
  /// not belong to the graph.
  void checkpoint_activations(bool on, KeepAttention keep = KeepAttention::kResults) {
    checkpointed_ = on;
    keep_ = keep;
  }

  torch::nn::Embedding embed_tokens{nullptr};  // null without StackOptions::embedding
  std::vector<std::shared_ptr<StackLayer>> layers;
  StreamNorm norm;

 private:
  void check_input(const ModelInput& input) const;
  /// Returns the number of layers that must see every token.
  size_t layers_for_all_tokens(const ModelInput& input) const;

  bool checkpointed_ = false;
  KeepAttention keep_ = KeepAttention::kResults;
};
TORCH_MODULE(Stack);

/// Makes the token embedding of a model. As in transformers, the padding token gets no gradient.
torch::nn::Embedding make_embedding(const ModelConfig& config);

/// Draws every parameter of `module` as CausalLM does, in the order in which the module registers
/// them.
void initialize_parameters(torch::nn::Module& module, double initializer_range,
                           double lambda_std_dev);

/// Replaces row b of every cache by the old row `rows[b]`.
void select_rows(KvCaches& caches, const torch::Tensor& rows);

}  // namespace diffattn::nn
