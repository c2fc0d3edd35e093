// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/encoder_decoder.h"

#include "nn/models/language_head.h"
#include "nn/models/token_ids.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

std::optional<Tensor> selected(const std::optional<Tensor>& values, const Tensor& rows) {
  if (!values) return std::nullopt;
  return values->index_select(0, rows.to(values->device(), torch::kLong));
}

ModelConfig with_encoder_layers(ModelConfig config) {
  if (config.num_encoder_layers == 0) config.num_encoder_layers = config.num_hidden_layers;
  return config;
}

/// Returns the mask of the cross-attention: a decoder row sees all source tokens but the padding.
AttentionMask cross_mask(const AttentionMask& decoder, const AttentionMask& encoder) {
  const auto& texts = decoder.cu_seqlens_q();
  const auto& sources = encoder.cu_seqlens_q();
  const int64_t packed_texts = texts ? texts->numel() - 1 : 0;
  const int64_t packed_sources = sources ? sources->numel() - 1 : 0;
  if (texts.has_value() != sources.has_value() || packed_texts != packed_sources) {
    throw_argument_error(
        "mask.cu_seqlens_q", "one text per source, both packed or neither",
        c10::str(packed_texts, " packed texts and ", packed_sources, " packed sources"));
  }
  const auto& mask = encoder.mask();
  if (mask && mask->dim() >= 2 && mask->size(-2) != 1) {
    throw_argument_error("source.mask", "a padding mask [..., 1, N], the same for every row",
                         c10::str("shape ", mask->sizes()));
  }
  return AttentionMask()
      .mask(mask)
      .key_starts(encoder.key_starts())
      .key_lengths(encoder.key_lengths())
      .cu_seqlens_q(texts)
      .cu_seqlens_k(sources);
}

}  // namespace

void WritingState::select_rows(const Tensor& rows, bool same_source) {
  nn::select_rows(self_caches, rows);
  key_starts = selected(key_starts, rows);
  if (same_source) return;
  nn::select_rows(cross_caches, rows);
  if (source.states.defined()) {
    source.states = source.states.index_select(0, rows.to(source.states.device(), torch::kLong));
  }
  source.mask.key_starts(selected(source.mask.key_starts(), rows))
      .key_lengths(selected(source.mask.key_lengths(), rows));
}

EncoderDecoderImpl::EncoderDecoderImpl(const ModelConfig& model_config)
    : config(with_encoder_layers(model_config)) {
  embed_tokens = register_module("embed_tokens", make_embedding(config));
  encoder = register_module(
      "encoder",
      Stack(config,
            StackOptions().layers(config.num_encoder_layers).causal(false).embedding(false)));
  decoder = register_module(
      "decoder",
      Stack(
          config,
          StackOptions().layers(config.num_hidden_layers).cross_attention(true).embedding(false)));
  lm_head = register_language_head(*this, config);
  initialize_model(*this, config, embed_tokens);
}

Tensor EncoderDecoderImpl::embed(const Tensor& ids) {
  check_token_ids(ids, embed_tokens->weight);
  return embed_tokens(ids);
}

Encoded EncoderDecoderImpl::encode(const ModelInput& input) {
  ModelInput embedded = input;
  if (!input.embedded) embedded.embedded = embed(input.ids);
  return {encoder->forward(embedded).last, input.mask};
}

ModelOutput EncoderDecoderImpl::decode(const ModelInput& input, const Encoded& source) {
  ModelInput embedded = input;
  if (!input.embedded) embedded.embedded = embed(input.ids);
  if (source.states.defined()) embedded.context = source.states;
  embedded.context_mask = cross_mask(input.mask, source.mask);
  return decoder->forward(embedded);
}

WritingState EncoderDecoderImpl::begin(const ModelInput& sources) {
  if (sources.mask.cu_seqlens_q() || sources.mask.mask()) {
    throw_argument_error("sources", "padding given by key_starts or key_lengths",
                         sources.mask.mask() ? "a mask" : "packed sequences");
  }
  const torch::NoGradGuard no_grad;
  WritingState state;
  state.source = encode(sources);
  state.self_caches = KvCaches(decoder->layers.size());
  state.cross_caches = KvCaches(decoder->layers.size());
  return state;
}

Tensor EncoderDecoderImpl::write(const Tensor& ids, WritingState& state) {
  const torch::NoGradGuard no_grad;
  ModelInput input;
  input.ids = ids;
  input.caches = &state.self_caches;
  input.cross_caches = &state.cross_caches;
  if (state.key_starts) {
    const Tensor starts = state.key_starts->to(ids.device(), torch::kLong).unsqueeze(1);
    const Tensor positions =
        torch::arange(state.length(), state.length() + ids.size(1), ids.options()).unsqueeze(0);
    input.positions = (positions - starts).clamp_min(0);
    input.mask.key_starts(state.key_starts);
  }
  const Tensor last = decode(input, state.source).last;
  state.source.states = Tensor();
  return last;
}

Tensor EncoderDecoderImpl::head_weight() const {
  return lm_head.is_empty() ? embed_tokens->weight : lm_head->weight;
}

Tensor EncoderDecoderImpl::logits(const Tensor& hidden) {
  check_hidden_states(hidden, head_weight());
  return torch::nn::functional::linear(hidden, head_weight());
}

void EncoderDecoderImpl::checkpoint_activations(bool on, KeepAttention keep) {
  encoder->checkpoint_activations(on, keep);
  decoder->checkpoint_activations(on, keep);
}

}  // namespace diffattn::nn
