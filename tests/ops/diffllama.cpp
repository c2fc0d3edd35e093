// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/diffllama.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "diffattn/io/json.h"
#include "diffattn/ops.h"

namespace diffattn::testing {
namespace {

using torch::Tensor;

/// Rotates x [B, N, heads, d] in pairs (i, i + d/2).
Tensor rotate_halves(const Tensor& x, double theta) {
  const int64_t half = x.size(-1) / 2;
  const auto options = torch::kFloat32;
  const Tensor frequency =
      torch::pow(theta, -torch::arange(half, options) / static_cast<double>(half));
  const Tensor angle = torch::outer(torch::arange(x.size(1), options), frequency).unsqueeze(1);
  const Tensor a = x.slice(-1, 0, half), b = x.slice(-1, half);
  return torch::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, -1);
}

}  // namespace

DiffLlama::DiffLlama(const std::string& folder) {
  const auto json = io::read_json(folder + "/config.json");
  const io::JsonValue config(json, folder + "/config.json");
  layers_ = config.at("num_hidden_layers").to_int();
  heads_ = config.at("num_attention_heads").to_int();
  kv_heads_ = config.at("num_key_value_heads").to_int();
  head_dim_ = config.at("head_dim").to_int();
  eps_ = config.at("rms_norm_eps").to_double();
  rope_theta_ = config.at("rope_parameters").at("rope_theta").to_double();
  weights_ = read_golden(folder + "/model.safetensors").tensors;
}

Tensor DiffLlama::norm(const Tensor& x, const std::string& name) const {
  return x * torch::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps_) * weight(name);
}

Tensor DiffLlama::attend(const Tensor& x, int64_t layer, const Tensor& key_starts) const {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
  const auto project = [&](const char* name) {
    return linear(x, weight(prefix + name)).unflatten(-1, {-1, head_dim_});
  };
  const auto vector = [&](const char* name) { return weights_.at(prefix + name); };
  const Tensor q = rotate_halves(project("q_proj"), rope_theta_);
  const Tensor k = rotate_halves(project("k_proj"), rope_theta_);
  const Tensor v = project("v_proj");
  const double init = 0.8 - 0.6 * std::exp(-0.3 * static_cast<double>(layer));
  const Tensor lambda = (vector("lambda_q1") * vector("lambda_k1")).sum().exp() -
                        (vector("lambda_q2") * vector("lambda_k2")).sum().exp() + init;
  // Map 1 has the first half of the heads, map 2 the second half; v is split likewise.
  const auto halves = [](const Tensor& t) { return t.chunk(2, 2); };
  const Tensor wide = torch::cat(halves(v), -1);
  const Tensor out = attention(
      halves(q)[0], halves(q)[1], halves(k)[0], halves(k)[1], wide, lambda,
      AttentionOptions().causal(true).key_starts(key_starts).norm_eps(eps_).out_scale(1.0 - init));
  return linear(out.flatten(2), weight(prefix + "o_proj"));
}

DiffLlama::Result DiffLlama::forward(const Tensor& ids, const Tensor& mask) const {
  const torch::NoGradGuard no_grad;
  const Tensor key_starts = mask.size(1) - mask.sum(1);
  Tensor x = torch::embedding(weight("model.embed_tokens"), ids);
  Result result{{x}, {}};
  for (int64_t layer = 0; layer < layers_; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    x = x + attend(norm(x, prefix + "input_layernorm"), layer, key_starts);
    const Tensor y = norm(x, prefix + "post_attention_layernorm");
    const Tensor gate = torch::silu(linear(y, weight(prefix + "mlp.gate_proj")));
    x = x +
        linear(gate * linear(y, weight(prefix + "mlp.up_proj")), weight(prefix + "mlp.down_proj"));
    result.hidden.push_back(x);
  }
  result.hidden.back() = norm(x, "model.norm");
  result.logits = linear(result.hidden.back(), weight("lm_head"));
  return result;
}

Tensor DiffLlama::greedy(const Tensor& ids, int64_t count) const {
  Tensor sequence = ids;
  for (int64_t i = 0; i < count; ++i) {
    const Tensor logits = forward(sequence, torch::ones_like(sequence)).logits;
    const Tensor next = logits.select(1, -1).argmax(-1, /*keepdim=*/true);
    sequence = torch::cat({sequence, next}, 1);
  }
  return sequence;
}

}  // namespace diffattn::testing
