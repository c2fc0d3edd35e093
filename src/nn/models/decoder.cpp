// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/decoder.h"

#include "nn/models/recompute.h"

namespace diffattn::nn {

using torch::Tensor;

DecoderLayerImpl::DecoderLayerImpl(const ModelConfig& config, int64_t layer) {
  const auto norm = RMSNormOptions(config.hidden_size)
                        .eps(config.rms_norm_eps)
                        .rounding(NormRounding::kBeforeWeight);
  self_attn = register_module("self_attn", make_attention(config, layer));
  mlp = register_module(
      "mlp",
      SwiGLU(SwiGLUOptions(config.hidden_size, config.intermediate_size).bias(config.mlp_bias)));
  input_layernorm = register_module("input_layernorm", RMSNorm(norm));
  post_attention_layernorm = register_module("post_attention_layernorm", RMSNorm(norm));
}

Tensor DecoderLayerImpl::forward(const AttentionInput& input, AttentionTrace* trace) {
  AttentionInput normed = input;
  normed.x = input_layernorm(input.x);
  const Tensor attended = self_attn->forward(normed, trace);
  const Tensor x = self_attn->adds_residual() ? attended : input.x + attended;
  return x + mlp(post_attention_layernorm(x));
}

DecoderImpl::DecoderImpl(const ModelConfig& config) {
  // As in transformers, the padding token's embedding gets no gradient.
  auto embedding = torch::nn::EmbeddingOptions(config.vocab_size, config.hidden_size);
  if (config.pad_token_id) embedding.padding_idx(*config.pad_token_id);
  embed_tokens = register_module("embed_tokens", torch::nn::Embedding(embedding));
  torch::nn::ModuleList list = register_module("layers", torch::nn::ModuleList());
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    layers.emplace_back(config, layer);
    list->push_back(layers.back());
  }
  norm = register_module("norm", RMSNorm(RMSNormOptions(config.hidden_size)
                                             .eps(config.rms_norm_eps)
                                             .rounding(NormRounding::kBeforeWeight)));
}

DecoderOutput DecoderImpl::forward(const DecoderInput& input) {
  TORCH_CHECK(!input.caches || input.caches->size() == layers.size(),
              "Decoder: caches: expected one per layer, ", layers.size(), ", got ",
              input.caches->size());
  DecoderOutput output;
  Tensor x = embed_tokens(input.ids);
  if (input.traces) input.traces->assign(layers.size(), {});
  const bool recompute = checkpointed_ && torch::GradMode::is_enabled() && !input.traces;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (input.keep_hidden) output.hidden.push_back(x);
    AttentionInput layer_input;
    layer_input.x = x;
    layer_input.mask = input.mask;
    layer_input.positions = input.positions;
    layer_input.cache = input.caches ? &(*input.caches)[i] : nullptr;
    AttentionTrace* trace = input.traces ? &(*input.traces)[i] : nullptr;
    const auto run = [layer = layers[i], layer_input](const Tensor& layer_x) mutable {
      layer_input.x = layer_x;
      return layer->forward(layer_input);
    };
    x = recompute ? recomputed(run, x) : layers[i]->forward(layer_input, trace);
  }
  output.last = norm(x);
  if (input.keep_hidden) output.hidden.push_back(output.last);
  return output;
}

CausalLMImpl::CausalLMImpl(const ModelConfig& model_config) : config(model_config) {
  model = register_module("model", Decoder(config));
  if (!config.tie_word_embeddings) {
    lm_head = register_module(
        "lm_head",
        torch::nn::Linear(
            torch::nn::LinearOptions(config.hidden_size, config.vocab_size).bias(false)));
  }
  initialize_parameters(*this, config.initializer_range, config.lambda_std_dev);
  if (config.pad_token_id) {
    const torch::NoGradGuard no_grad;
    model->embed_tokens->weight[*config.pad_token_id].zero_();
  }
}

Tensor CausalLMImpl::head_weight() const {
  return lm_head.is_empty() ? model->embed_tokens->weight : lm_head->weight;
}

Tensor CausalLMImpl::logits(const Tensor& hidden) {
  return torch::nn::functional::linear(hidden, head_weight());
}

void initialize_parameters(torch::nn::Module& module, double initializer_range,
                           double lambda_std_dev) {
  const torch::NoGradGuard no_grad;
  for (auto& item : module.named_parameters()) {
    Tensor& parameter = item.value();
    const bool is_lambda = item.key().find("lambda_") != std::string::npos;
    if (is_lambda && parameter.dim() == 1) {
      parameter.normal_(0.0, lambda_std_dev);
    } else if (parameter.dim() >= 2) {
      parameter.normal_(0.0, initializer_range);
    } else if (item.key().ends_with("bias")) {
      parameter.zero_();
    }
  }
}

}  // namespace diffattn::nn
