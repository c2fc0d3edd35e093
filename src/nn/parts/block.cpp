// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/block.h"

#include <ATen/autocast_mode.h>

#include <utility>

#include "nn/parts/residual_stream.h"
#include "ops/layers/token_layer.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

void check_part(const char* name, int64_t dim, int64_t expected) {
  if (dim == expected) return;
  throw_argument_error(name, "the block's dim = " + std::to_string(expected),
                       "dim = " + std::to_string(dim));
}

}  // namespace

DiffBlockImpl::DiffBlockImpl(const DiffBlockOptions& options_,
                             std::shared_ptr<AttentionLayer> attention,
                             std::shared_ptr<AttentionLayer> cross_attention)
    : options(options_) {
  if (!attention) throw_argument_error("attention", "an attention layer", "none");
  const int64_t dim = options.dim();
  const auto norm = RMSNormOptions(dim).eps(options.norm_eps()).rounding(options.norm_rounding());
  input_layernorm = register_module("input_layernorm", RMSNorm(norm));
  self_attn = register_module("self_attn", std::move(attention));
  if (cross_attention) {
    cross_attention_layernorm = register_module("cross_attention_layernorm", RMSNorm(norm));
    cross_attn = register_module("cross_attn", std::move(cross_attention));
  }
  post_attention_layernorm = register_module("post_attention_layernorm", RMSNorm(norm));
  mlp =
      register_module("mlp", SwiGLU(SwiGLUOptions(dim, options.hidden()).bias(options.mlp_bias())));
  if (options.enhancer()) {
    check_part("enhancer", options.enhancer()->dim(), dim);
    enhancer = register_module("enhancer", TokenFeatureEnhancer(*options.enhancer()));
  }
  if (options.noise_reduction()) {
    check_part("noise_reduction", options.noise_reduction()->dim(), dim);
    noise_reduction =
        register_module("noise_reduction", NoiseReduction(*options.noise_reduction()));
  }
  if (options.gate()) {
    check_part("gate", options.gate()->dim(), dim);
    gate = register_module("gate", InformationFlowGate(*options.gate()));
  }
}

Tensor DiffBlockImpl::forward(const AttentionInput& input, AttentionTrace* trace) {
  ResidualStream stream(input.x);
  run(stream, input, nullptr, trace, nullptr);
  return stream.value();
}

Tensor DiffBlockImpl::forward(const AttentionInput& input, const AttentionInput& cross,
                              AttentionTrace* trace, AttentionTrace* cross_trace) {
  ResidualStream stream(input.x);
  run(stream, input, &cross, trace, cross_trace);
  return stream.value();
}

/// Computes one new token per row without torch operators, if `token_layer` supports the block.
std::optional<Tensor> DiffBlockImpl::next_token(const AttentionInput& input) {
  if (enhancer || noise_reduction || gate || input.cache == nullptr || mlp->options.merged() ||
      !options.attention_residual().value_or(!self_attn->adds_residual()) ||
      torch::GradMode::is_enabled() || at::autocast::is_autocast_enabled(at::kCPU)) {
    return std::nullopt;
  }
  std::optional<TokenAttention> attention = self_attn->token_attention(input);
  if (!attention) return std::nullopt;
  const auto map = [](const torch::nn::Linear& linear) {
    return LinearMap{linear->weight, linear->bias};
  };
  const TokenLayer layer{.input_norm = input_layernorm->weight,
                         .post_norm = post_attention_layernorm->weight,
                         .norm_eps = options.norm_eps(),
                         .attention = std::move(*attention),
                         .gate = map(mlp->gate_proj),
                         .up = map(mlp->up_proj),
                         .down = map(mlp->down_proj)};
  if (!takes_token(input.x, layer)) return std::nullopt;
  return token_layer(input.x, layer, self_attn->token_past(input));
}

void DiffBlockImpl::run(ResidualStream& stream, const AttentionInput& input,
                        const AttentionInput* cross, AttentionTrace* trace,
                        AttentionTrace* cross_trace) {
  if (cross_attn && cross == nullptr) {
    throw_argument_error("cross", "the input of the cross-attention", "none");
  }
  if (!cross_attn && cross != nullptr) {
    throw_argument_error("cross", "none without cross-attention", "an input");
  }
  if (input.cache != nullptr && trace == nullptr && !cross_attn) {
    AttentionInput token = input;
    token.x = stream.value();
    if (const auto y = next_token(token)) {
      stream = ResidualStream(*y);
      return;
    }
  }
  const bool gate_reads_map = gate && gate->options.attention_input();
  AttentionTrace own;
  AttentionTrace* calls = trace;
  if (calls == nullptr && (enhancer || noise_reduction || gate_reads_map)) calls = &own;

  const Tensor x = gate ? stream.value() : Tensor();
  AttentionInput normed = input;
  // An attention that adds the residual itself gets one that is not rounded.
  normed.x = self_attn->adds_residual() ? stream.normed_in_full(input_layernorm)
                                        : stream.normed(input_layernorm);
  Tensor a = self_attn->forward(normed, calls);
  const Tensor m =
      enhancer || gate_reads_map ? token_weights(*calls, options.token_weight()) : Tensor();
  if (enhancer) a = enhancer(a, m);
  if (noise_reduction) a = noise_reduction(a, calls->calls.at(0));
  if (options.attention_residual().value_or(!self_attn->adds_residual())) {
    stream.add(a);
  } else {
    stream = ResidualStream(a);
  }
  if (cross_attn) {
    AttentionInput cross_input = *cross;
    cross_input.x = stream.normed(cross_attention_layernorm);
    stream.add(cross_attn->forward(cross_input, cross_trace));
  }
  stream.add(mlp(stream.normed(post_attention_layernorm)));
  if (gate) stream = ResidualStream(gate(stream.value(), x, gate_reads_map ? m : Tensor()));
}

Tensor DiffBlockImpl::forward(const Tensor& x) {
  AttentionInput input;
  input.x = x;
  return forward(input);
}

}  // namespace diffattn::nn
