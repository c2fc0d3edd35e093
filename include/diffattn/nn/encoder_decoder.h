// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>

#include "diffattn/nn/model_config.h"
#include "diffattn/nn/stack.h"

namespace diffattn::nn {

/// What the encoder made of the sources, and which of it is padding.
struct Encoded {
  torch::Tensor states = {};  // [B, N, E]; packed [total_k, E]
  AttentionMask mask = {};    // the encoder's: key_starts, key_lengths or cu_seqlens_q
};

/// What the decoder remembers while it writes, one row per text (per beam): keys and values of its
/// own tokens, which grow, and of the source, which do not.
struct WritingState {
  Encoded source = {};  // states: dropped once the cross-attention has read them
  /// [B] integers: leading decoder tokens that are padding, for prompts of different lengths.
  std::optional<torch::Tensor> key_starts = {};
  KvCaches self_caches = {}, cross_caches = {};

  /// Decoder tokens read so far.
  int64_t length() const { return self_caches.empty() ? 0 : self_caches.front().length(); }

  /// Row b becomes what row `rows[b]` was: beam search, several beams per source (rows may repeat
  /// and their number may change), dropping finished texts. `same_source`: every row keeps the
  /// source it had, so that keys and values of the source stay where they are.
  void select_rows(const torch::Tensor& rows, bool same_source = false);
};

/// A bidirectional encoder and a causal decoder whose blocks attend to the encoder's result (q1, q2
/// from the decoder, k1, k2 and v from the encoder, no rotary embedding there). Both read one
/// embedding; the head is the embedding's weight when tied.
///
/// Parameters: embed_tokens, encoder.layers.i, encoder.norm, decoder.layers.i (with `cross_attn`
/// and `cross_attention_layernorm` beside a block's own), decoder.norm, lm_head.
///
/// Attentions that cannot look at a context ("dint", "introspective") have their nearest kin there:
/// "microsoft_v1" and "transformer".
class EncoderDecoderImpl : public torch::nn::Module {
 public:
  /// Parameters are drawn as CausalLM's. `config.num_hidden_layers` decoder blocks and
  /// `config.num_encoder_layers` encoder blocks.
  explicit EncoderDecoderImpl(const ModelConfig& config);

  /// Sources: ids [B, N] with their padding in `mask`, or packed [total] with mask.cu_seqlens_q.
  Encoded encode(const ModelInput& input);

  /// Decoder tokens [B, M] (packed [total] with mask.cu_seqlens_q, one text per source) against
  /// their sources. `input.context` and `input.context_mask` are set from `source`.
  ModelOutput decode(const ModelInput& input, const Encoded& source);

  /// Reads the sources and gives an empty text for each.
  WritingState begin(const ModelInput& sources);
  /// The next tokens [B, m] of each text -> their hidden states [B, m, E]. No gradients.
  torch::Tensor write(const torch::Tensor& ids, WritingState& state);

  /// [..., E] -> [..., V].
  torch::Tensor logits(const torch::Tensor& hidden);
  /// [V, E]: the head's weight, the embedding's when tied.
  torch::Tensor head_weight() const;
  /// As StackImpl's, of both.
  void checkpoint_activations(bool on, KeepAttention keep = KeepAttention::kResults);

  const ModelConfig config;
  torch::nn::Embedding embed_tokens{nullptr};
  Stack encoder{nullptr}, decoder{nullptr};
  torch::nn::Linear lm_head{nullptr};  // null when tied
};
TORCH_MODULE(EncoderDecoder);

}  // namespace diffattn::nn
