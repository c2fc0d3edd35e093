// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/block.h"

#include <ATen/autocast_mode.h>

#include <utility>

#include "ops/layers/token_layer.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

void check_part(const char* name, int64_t dim, int64_t expected) {
  if (dim == expected) return;
  throw_argument_error(name, "the block's dim = " + std::to_string(expected),
                       "dim = " + std::to_string(dim));
}

/// Casts x to autocast's type once, instead of once for each projection that reads it.
Tensor for_products(const Tensor& x) {
  const auto device = x.device().type();
  if (!at::autocast::is_autocast_enabled(device) || x.scalar_type() == torch::kFloat64) return x;
  return x.to(at::autocast::get_autocast_dtype(device));
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
  if (cross_attn) throw_argument_error("cross", "the input of the cross-attention", "none");
  if (trace == nullptr) {
    if (const auto y = next_token(input)) return *y;
  }
  return run(input, nullptr, trace, nullptr);
}

Tensor DiffBlockImpl::forward(const AttentionInput& input, const AttentionInput& cross,
                              AttentionTrace* trace, AttentionTrace* cross_trace) {
  if (!cross_attn) throw_argument_error("cross", "none without cross-attention", "an input");
  return run(input, &cross, trace, cross_trace);
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

Tensor DiffBlockImpl::run(const AttentionInput& input, const AttentionInput* cross,
                          AttentionTrace* trace, AttentionTrace* cross_trace) {
  const bool gate_reads_map = gate && gate->options.attention_input();
  AttentionTrace own;
  AttentionTrace* calls = trace;
  if (calls == nullptr && (enhancer || noise_reduction || gate_reads_map)) calls = &own;

  AttentionInput normed = input;
  const Tensor norm = input_layernorm(input.x);
  normed.x = self_attn->adds_residual() ? norm : for_products(norm);  // no cast of a residual
  Tensor a = self_attn->forward(normed, calls);
  const Tensor m =
      enhancer || gate_reads_map ? token_weights(*calls, options.token_weight()) : Tensor();
  if (enhancer) a = enhancer(a, m);
  if (noise_reduction) a = noise_reduction(a, calls->calls.at(0));
  Tensor h = options.attention_residual().value_or(!self_attn->adds_residual()) ? input.x + a : a;
  if (cross_attn) {
    AttentionInput cross_input = *cross;
    cross_input.x = for_products(cross_attention_layernorm(h));
    h = h + cross_attn->forward(cross_input, cross_trace);
  }
  const Tensor y = h + mlp(for_products(post_attention_layernorm(h)));
  return gate ? gate(y, input.x, gate_reads_map ? m : Tensor()) : y;
}

Tensor DiffBlockImpl::forward(const Tensor& x) {
  AttentionInput input;
  input.x = x;
  return forward(input);
}

}  // namespace diffattn::nn
