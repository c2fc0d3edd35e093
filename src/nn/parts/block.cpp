// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/block.h"

#include <utility>

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
                             std::shared_ptr<AttentionLayer> attention)
    : options(options_) {
  if (!attention) throw_argument_error("attention", "an attention layer", "none");
  const int64_t dim = options.dim();
  const auto norm = RMSNormOptions(dim).eps(options.norm_eps()).rounding(options.norm_rounding());
  input_layernorm = register_module("input_layernorm", RMSNorm(norm));
  self_attn = register_module("self_attn", std::move(attention));
  post_attention_layernorm = register_module("post_attention_layernorm", RMSNorm(norm));
  mlp = register_module("mlp", SwiGLU(SwiGLUOptions(dim, options.hidden())));
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
  const bool gate_reads_map = gate && gate->options.attention_input();
  AttentionTrace own;
  AttentionTrace* calls = trace;
  if (calls == nullptr && (enhancer || noise_reduction || gate_reads_map)) calls = &own;

  AttentionInput normed = input;
  normed.x = input_layernorm(input.x);
  Tensor a = self_attn->forward(normed, calls);
  const Tensor m =
      enhancer || gate_reads_map ? token_weights(*calls, options.token_weight()) : Tensor();
  if (enhancer) a = enhancer(a, m);
  if (noise_reduction) a = noise_reduction(a, calls->calls.at(0));
  const Tensor h =
      options.attention_residual().value_or(!self_attn->adds_residual()) ? input.x + a : a;
  const Tensor y = h + mlp(post_attention_layernorm(h));
  return gate ? gate(y, input.x, gate_reads_map ? m : Tensor()) : y;
}

Tensor DiffBlockImpl::forward(const Tensor& x) {
  AttentionInput input;
  input.x = x;
  return forward(input);
}

}  // namespace diffattn::nn
