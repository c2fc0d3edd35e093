// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>

#include "diffattn/nn/model_config.h"
#include "diffattn/nn/stack.h"

namespace diffattn::nn {

/// The encoder's result and its padding.
struct Encoded {
  torch::Tensor states = {};  // [B, N, E]; packed [total_k, E]
  AttentionMask mask = {};    // key_starts, key_lengths or cu_seqlens_q of the sources
};

/// The decoder's state during generation, with one row per text (per beam): keys and values of its
/// own tokens, which grow, and of the source, which do not.
struct WritingState {
  Encoded source = {};  // `states` is dropped once the cross-attention has read it
  /// [B] integers: number of leading padding tokens, for prompts of different lengths.
  std::optional<torch::Tensor> key_starts = {};
  KvCaches self_caches = {}, cross_caches = {};

  /// Returns the number of decoder tokens read so far.
  int64_t length() const { return self_caches.empty() ? 0 : self_caches.front().length(); }

  /// Replaces row b by the old row `rows[b]`, for beam search and for dropping finished texts. Rows
  /// may repeat, and their number may change. `same_source` says that no row changes its source, so
  /// that the keys and values of the source stay in place.
  void select_rows(const torch::Tensor& rows, bool same_source = false);
};

/// A bidirectional encoder and a causal decoder with cross-attention to the encoder's result: q1,
/// q2 from the decoder, k1, k2 and v from the encoder, no rotary embedding. Both share one
/// embedding; a tied head shares it too.
///
/// Parameters: embed_tokens, encoder.layers.i, encoder.norm, decoder.layers.i (with `cross_attn`
/// and `cross_attention_layernorm` in addition to a block's own), decoder.norm, lm_head.
///
/// The presets "dint" and "introspective" have no cross-attention. Their models use "microsoft_v1"
/// and "transformer" for it.
class EncoderDecoderImpl : public torch::nn::Module {
 public:
  /// Makes `config.num_hidden_layers` decoder blocks and `config.num_encoder_layers` encoder
  /// blocks, and draws parameters as CausalLM does.
  explicit EncoderDecoderImpl(const ModelConfig& config);

  /// Encodes sources: ids [B, N] with their padding in `mask`, or packed [total] with
  /// mask.cu_seqlens_q.
  Encoded encode(const ModelInput& input);

  /// Runs the decoder on tokens [B, M] (packed [total] with mask.cu_seqlens_q, one text per
  /// source). Sets `input.context` and `input.context_mask` from `source`.
  ModelOutput decode(const ModelInput& input, const Encoded& source);

  /// Encodes the sources and returns the state of one empty text for each.
  WritingState begin(const ModelInput& sources);
  /// Appends tokens [B, m] to the texts and returns their hidden states [B, m, E]. No gradients.
  torch::Tensor write(const torch::Tensor& ids, WritingState& state);

  /// hidden [..., E] -> [..., V].
  torch::Tensor logits(const torch::Tensor& hidden);
  /// Returns the weight of the head, [V, E]; the embedding's weight if tied.
  torch::Tensor head_weight() const;
  /// Calls StackImpl::checkpoint_activations for encoder and decoder.
  void checkpoint_activations(bool on, KeepAttention keep = KeepAttention::kResults);

  const ModelConfig config;
  torch::nn::Embedding embed_tokens{nullptr};
  Stack encoder{nullptr}, decoder{nullptr};
  torch::nn::Linear lm_head{nullptr};  // null if tied

 private:
  torch::Tensor embed(const torch::Tensor& ids);
};
TORCH_MODULE(EncoderDecoder);

}  // namespace diffattn::nn
