// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>
#include <vector>

#include "diffattn/nn/kv_cache.h"
#include "diffattn/nn/rotary.h"
#include "diffattn/ops.h"

namespace diffattn {
struct TokenAttention;
struct TokenPast;
}  // namespace diffattn

namespace diffattn::nn {

/// Who may see whom in one call. Everything given here combines with the layer's own `causal` and
/// `window`, except that `causal` and `window`, when given, replace them.
struct AttentionMask {
  TORCH_ARG(std::optional<bool>, causal);
  TORCH_ARG(std::optional<int64_t>, window);
  /// Boolean (true = may see) or additive; broadcasts to [B, H, M, N].
  TORCH_ARG(std::optional<torch::Tensor>, mask);
  /// [B] integers: keys before it are padding (left padding).
  TORCH_ARG(std::optional<torch::Tensor>, key_starts);
  /// [B] integers: keys from it on are padding (right padding).
  TORCH_ARG(std::optional<torch::Tensor>, key_lengths);
  /// [S + 1] integers: x is packed [total, E], S sequences one after another. `cu_seqlens_k`
  /// belongs to a packed context (default: as cu_seqlens_q).
  TORCH_ARG(std::optional<torch::Tensor>, cu_seqlens_q);
  TORCH_ARG(std::optional<torch::Tensor>, cu_seqlens_k);
};

/// What an attention layer reads. Rows of x are the newest tokens: with a cache, row m stands at
/// cache length + m and sees what the cache holds.
struct AttentionInput {
  torch::Tensor x = {};                       // [B, M, E]; packed [total, E]
  std::optional<torch::Tensor> context = {};  // cross-attention: [B, N, C]; packed [total_k, C]
  AttentionMask mask = {};
  /// [M] or [B, M] (packed [total]) integers for the rotary embedding. Default: cache length, ... ;
  /// in packed sequences each counts from 0.
  std::optional<torch::Tensor> positions = {};
  /// What `AttentionLayer::angles` of a layer with the same rotary embedding gave for this input,
  /// so that the layers of a model need not each work them out.
  std::optional<RotaryTable> angles = {};
  /// Self-attention: x is appended. Cross-attention: filled from the context when empty, and then
  /// the context may be left out.
  KvCache* cache = nullptr;
};

/// The arguments of one `attention` call: `attention_stats(q1, q2, k1, k2, lambda, options)` and
/// `attention_map(...)` of them describe the map that the layer used.
struct HeadTensors {
  torch::Tensor q1 = {}, q2 = {};  // [B, M, H, D]; packed [total, H, D]
  torch::Tensor k1 = {}, k2 = {};  // [B, N, Hkv, D]
  torch::Tensor v = {};            // [B, N, Hkv, Dv]
  torch::Tensor lambda = {};       // one number, [H] or [B, M, H]
  AttentionOptions options = {};
  /// An ordinary softmax map: q2 = q1, k2 = k1, lambda = 0, and routes compute one map only.
  bool single_map = false;
};

/// What a layer computed on the way, with its graph: one entry per `attention` call of the layer.
struct AttentionTrace {
  std::vector<HeadTensors> calls;
};

/// Any attention of the family, so that models hold one type.
class AttentionLayer : public torch::nn::Module {
 public:
  /// Returns [B, M, E] (packed [total, E]). Fills `trace` when there is one.
  virtual torch::Tensor forward(const AttentionInput& input, AttentionTrace* trace = nullptr) = 0;

  /// Whether `forward` already adds its input: a block must then not add it again.
  virtual bool adds_residual() const { return false; }

  /// The angles by which the rows of x turn; none without a rotary embedding.
  virtual std::optional<RotaryTable> angles(const AttentionInput& /*input*/) { return {}; }

  /// What `token_layer` needs to compute this layer for one new token per row behind those of the
  /// cache; none where it cannot.
  virtual std::optional<TokenAttention> token_attention(const AttentionInput& input) const;
  /// Makes room for these tokens in the cache. Only after `token_attention` gave something.
  virtual TokenPast token_past(const AttentionInput& input);

  /// From now on lambda is `factor` times what the parameters say; 1 at first. Nothing for layers
  /// without a lambda between two maps (plain, introspective).
  virtual void scale_lambda(double /*factor*/) {}

  /// Number of parameters, all of them.
  int64_t parameter_count() const;
};

/// `AttentionLayer::scale_lambda` of every attention layer inside a model.
void scale_lambda(torch::nn::Module& model, double factor);

}  // namespace diffattn::nn
