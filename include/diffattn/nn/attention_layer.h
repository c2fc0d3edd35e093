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

struct StepAttention;

/// The masks of one call. If given, `causal` and `window` replace the layer's own. A query sees a
/// key only if every mask allows it.
struct AttentionMask {
  TORCH_ARG(std::optional<bool>, causal);
  TORCH_ARG(std::optional<int64_t>, window);
  /// Boolean (true = visible) or additive; broadcasts to [B, H, M, N].
  TORCH_ARG(std::optional<torch::Tensor>, mask);
  /// [B] integers: keys n < key_starts[b] are padding (left padding).
  TORCH_ARG(std::optional<torch::Tensor>, key_starts);
  /// [B] integers: keys n >= key_lengths[b] are padding (right padding).
  TORCH_ARG(std::optional<torch::Tensor>, key_lengths);
  /// [S + 1] integers: x is packed [total, E], and sequence s is rows [cu_seqlens_q[s],
  /// cu_seqlens_q[s + 1]). `cu_seqlens_k` is for a packed context (default: cu_seqlens_q).
  TORCH_ARG(std::optional<torch::Tensor>, cu_seqlens_q);
  TORCH_ARG(std::optional<torch::Tensor>, cu_seqlens_k);
};

/// Tensors that a layer leaves for later layers of the same forward pass.
struct SharedTensors {
  torch::Tensor k = {}, v = {};  // keys [B, N, key_heads, D] and values of KeySharing::kOwner
  torch::Tensor memory = {};     // [B, M, width]: the output of a Mamba layer before its gate
};

/// The input of an attention layer. Rows of x are the newest tokens: with a cache, row m has the
/// position cache length + m and also sees the tokens in the cache.
struct AttentionInput {
  torch::Tensor x = {};                       // [B, M, E]; packed [total, E]
  std::optional<torch::Tensor> context = {};  // cross-attention: [B, N, C]; packed [total_k, C]
  AttentionMask mask = {};
  /// [M] or [B, M] (packed [total]) integers for the rotary embedding. Default: consecutive numbers
  /// from the cache length on; packed sequences each start at 0.
  std::optional<torch::Tensor> positions = {};
  /// The result of `AttentionLayer::angles` for this input, from a layer with the same rotary
  /// embedding. The layers of a model share it.
  std::optional<RotaryTable> angles = {};
  /// Self-attention appends the keys and values of x. Cross-attention fills an empty cache from the
  /// context; later calls may leave the context out.
  KvCache* cache = nullptr;
  /// Only for layers that share tensors.
  SharedTensors* shared = nullptr;
};

/// The arguments of one `attention` call. Passed to `attention_stats` or `attention_map`, they
/// describe the map that the layer used.
struct HeadTensors {
  torch::Tensor q1 = {}, q2 = {};  // [B, M, H, D]; packed [total, H, D]; q2 may have fewer heads
  torch::Tensor k1 = {}, k2 = {};  // [B, N, Hkv, D]
  torch::Tensor v = {};            // [B, N, Hkv, Dv]
  torch::Tensor lambda = {};       // one number, [H] or [B, M, H]
  AttentionOptions options = {};
  /// True for an ordinary softmax map: q2 = q1, k2 = k1, lambda = 0. Routes then compute one map.
  bool single_map = false;
};

/// The `attention` calls of a layer, in order. Their tensors keep their autograd graph.
struct AttentionTrace {
  std::vector<HeadTensors> calls;
};

/// Base class of all layers that mix tokens: attention, and layers in its place.
class AttentionLayer : public torch::nn::Module {
 public:
  /// Returns [B, M, E] (packed [total, E]). Appends to `trace` if it is not null.
  virtual torch::Tensor forward(const AttentionInput& input, AttentionTrace* trace = nullptr) = 0;

  /// True if `forward` adds its input to the result, so that a block must not.
  virtual bool adds_residual() const { return false; }

  /// Returns the rotary angles of the rows of x; none without a rotary embedding.
  virtual std::optional<RotaryTable> angles(const AttentionInput& /*input*/) { return {}; }

  /// Returns the parameters with which `token_layer` computes this layer for one new token per row;
  /// none if it cannot.
  virtual std::optional<TokenAttention> token_attention(const AttentionInput& input) const;
  /// Makes room for these tokens in the cache and returns the state before them. Call it only if
  /// `token_attention` returned a value.
  virtual TokenPast token_past(const AttentionInput& input);

  /// Returns the parameters with which generation on a GPU computes this layer; none if it cannot.
  virtual std::optional<StepAttention> step_attention();

  /// Multiplies lambda by `factor` in all later calls; initially 1. Layers without a second map
  /// (plain, introspective) ignore it.
  virtual void scale_lambda(double /*factor*/) {}

  /// True if the layer keeps something in its cache that later tokens need.
  virtual bool keeps_cache() const { return true; }
  /// Returns how many rows of its cache later tokens need; none: all of them.
  virtual std::optional<int64_t> needed_rows() const { return {}; }
  /// True if the layer reads or writes AttentionInput::shared.
  virtual bool shares_tensors() const { return false; }
  /// Draws the parameters that do not start as `initialize_parameters` would draw them.
  virtual void draw_own_parameters() {}

  /// Returns the number of elements of all parameters.
  int64_t parameter_count() const;
};

/// Calls `AttentionLayer::scale_lambda` for every attention layer of a model.
void scale_lambda(torch::nn::Module& model, double factor);

}  // namespace diffattn::nn
