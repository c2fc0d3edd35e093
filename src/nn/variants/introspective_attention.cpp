// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/introspective_attention.h"

#include <string>

#include "nn/attention/inputs.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

void check(const IntrospectiveAttentionOptions& o) {
  const auto text = [](int64_t value) { return std::to_string(value); };
  if (o.paths() < 2) {
    throw_argument_error("paths", "at least 2, since a path attends to earlier ones",
                         text(o.paths()));
  }
  if (o.num_heads() < 1 || o.embed_dim() < 1 || o.embed_dim() % o.num_heads() != 0) {
    throw_argument_error("num_heads", "a divisor of embed_dim = " + text(o.embed_dim()),
                         text(o.num_heads()));
  }
  const int64_t kv_heads = o.num_kv_heads().value_or(o.num_heads());
  if (kv_heads < 1 || o.num_heads() % kv_heads != 0) {
    throw_argument_error("num_kv_heads", "a divisor of num_heads = " + text(o.num_heads()),
                         text(kv_heads));
  }
  if (o.window() && (!o.causal() || *o.window() < 1)) {
    throw_argument_error("window", "none, or at least 1 with causal attention", text(*o.window()));
  }
}

torch::nn::Linear linear(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

}  // namespace

IntrospectivePathImpl::IntrospectivePathImpl(const IntrospectiveAttentionOptions& o) {
  const int64_t head_dim = o.embed_dim() / o.num_heads();
  const int64_t kv_rows = o.num_kv_heads().value_or(o.num_heads()) * head_dim;
  q_proj = register_module("q_proj", linear(o.embed_dim(), o.embed_dim()));
  k_proj = register_module("k_proj", linear(o.embed_dim(), kv_rows));
  v_proj = register_module("v_proj", linear(o.embed_dim(), kv_rows));
  const int64_t width = o.per_head_norm() ? head_dim : o.embed_dim();
  layer_norm = register_module("layer_norm", RMSNorm(RMSNormOptions(width).eps(o.norm_eps())));
}

IntrospectiveAttentionImpl::IntrospectiveAttentionImpl(
    const IntrospectiveAttentionOptions& options_)
    : options(options_) {
  check(options);
  head_dim_ = options.embed_dim() / options.num_heads();
  kv_heads_ = options.num_kv_heads().value_or(options.num_heads());
  const int64_t count = options.paths();
  const auto list = register_module("P_layers", torch::nn::ModuleList());
  const auto weights = register_module("lambda_weights", torch::nn::ParameterList());
  for (int64_t i = 0; i < count; ++i) {
    paths.emplace_back(options);
    list->push_back(paths.back().ptr());
    weights->append(torch::zeros({1}).requires_grad_(true));
    lambda_weights.push_back((*weights)[static_cast<size_t>(i)]);
  }
  if (options.path_weights() == PathWeights::kLayerNorm) {
    // We do not call them "weight" and "bias", because models initialise every "bias" to 0, and
    // lambda would no longer be a mean.
    const auto norm = register_module("path_norm", std::make_shared<torch::nn::Module>());
    path_norm_gain = norm->register_parameter("gain", torch::ones({count}));
    path_norm_offset =
        norm->register_parameter("offset", torch::full({count}, 1.0 / static_cast<double>(count)));
  } else if (options.path_weights() == PathWeights::kLayerNormLiteral) {
    TORCH_WARN(
        "IntrospectiveAttention: path_weights 'layernorm_literal' gives lambda = 0 if all path "
        "weights are equal, as they are initially: no path contributes, and only lambda_weights "
        "learns. 'layernorm' starts with a mean.");
  }
  alpha = register_parameter("alpha", torch::ones({1}));
  final_layer_norm = register_module(
      "final_layer_norm", RMSNorm(RMSNormOptions(options.embed_dim()).eps(options.norm_eps())));
  if (options.out_proj()) {
    out_proj = register_module("out_proj", linear(options.embed_dim(), options.embed_dim()));
  }
  rotary_ = Rotary(head_dim_, options.rotary());
}

Tensor IntrospectiveAttentionImpl::lambda() const {
  const Tensor w = torch::cat(lambda_weights);
  switch (options.path_weights()) {
    case PathWeights::kSigmoid: return w.sigmoid();
    case PathWeights::kSoftmax: return w.softmax(0);
    case PathWeights::kLayerNorm:
    case PathWeights::kLayerNormLiteral: break;
  }
  constexpr double kEps = 1e-5;
  return torch::layer_norm(w.sigmoid(), {options.paths()}, path_norm_gain, path_norm_offset, kEps);
}

std::optional<RotaryTable> IntrospectiveAttentionImpl::angles(const AttentionInput& input) {
  if (options.rotary().style() == RotaryStyle::kNone) return std::nullopt;
  return rotary_table(*rotary_, input);
}

Tensor IntrospectiveAttentionImpl::forward(const AttentionInput& input, AttentionTrace* trace) {
  const bool packed = input.mask.cu_seqlens_q().has_value();
  if (input.context)
    throw_argument_error("context", "none, since this is self-attention", "a tensor");
  if (packed && (input.cache != nullptr || trace != nullptr)) {
    throw_argument_error(input.cache != nullptr ? "cache" : "trace", "none with packed sequences",
                         "one");
  }
  const Tensor& x = input.x;
  const RotaryTable table = rotary_table(*rotary_, input);
  const AttentionOptions operation = mask_options(input.mask, options.causal(), options.window());
  const auto weights = lambda().to(x.scalar_type()).unbind();
  std::vector<Tensor> ks, vs;
  Tensor sum = alpha.to(x.scalar_type()) * x;
  for (size_t i = 0; i < paths.size(); ++i) {
    IntrospectivePath& path = paths[i];
    const auto heads = [&](const Tensor& rows, int64_t count) {
      return rows.unflatten(-1, {count, head_dim_});
    };
    const Tensor q = rotary_->rotate(heads(path->q_proj(x), options.num_heads()), table);
    const Tensor k = rotary_->rotate(heads(path->k_proj(x), kv_heads_), table);
    const Tensor v = heads(path->v_proj(x), kv_heads_);
    ks.push_back(input.cache != nullptr ? input.cache->append(2 * i, k) : k);
    vs.push_back(input.cache != nullptr ? input.cache->append(2 * i + 1, v) : v);
    if (trace != nullptr) trace->calls.push_back(bank_call(q, ks, vs, operation));
    const Tensor o = bank_attention(options.schedule(), q, ks, vs, operation);
    const Tensor a =
        options.per_head_norm() ? path->layer_norm(o).flatten(-2) : path->layer_norm(o.flatten(-2));
    sum = sum + weights[i] * a;
  }
  const Tensor y = final_layer_norm(sum);
  return options.out_proj() ? out_proj(y) : y;
}

Tensor IntrospectiveAttentionImpl::forward(const Tensor& x) {
  AttentionInput input;
  input.x = x;
  return forward(input);
}

}  // namespace diffattn::nn
