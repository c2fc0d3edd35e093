// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/latent_attention.h"

#include <cmath>

#include "diffattn/nn/route.h"
#include "diffattn/ops_layers.h"
#include "nn/attention/inputs.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

constexpr size_t kLatentSlot = 0, kRotatedSlot = 1;
/// New tokens up to which the absorbed form does less work, after a filled cache.
constexpr int64_t kFewTokens = 8;

Tensor times(const torch::nn::Linear& map, const Tensor& x) {
  return diffattn::linear(x, map->weight);
}

void require_latent(bool holds, const char* name, const std::string& expected, int64_t got) {
  if (!holds) throw_argument_error(name, expected, std::to_string(got));
}

void check_latent_options(const LatentAttentionOptions& o) {
  for (const auto& [name, size] :
       {std::pair("hidden_size", o.hidden_size()), std::pair("head_dim", o.head_dim()),
        std::pair("num_attention_heads", o.num_attention_heads()),
        std::pair("num_key_value_heads", o.num_key_value_heads()),
        std::pair("num_noise_heads", o.num_noise_heads()), std::pair("v_head_dim", o.v_head_dim()),
        std::pair("q_lora_rank", o.q_lora_rank()), std::pair("kv_lora_rank", o.kv_lora_rank())}) {
    require_latent(size >= 1, name, "at least 1", size);
  }
  require_latent(o.num_attention_heads() % o.num_noise_heads() == 0 &&
                     o.num_attention_heads() > o.num_noise_heads(),
                 "num_noise_heads",
                 "a divisor of the " + std::to_string(o.num_attention_heads()) +
                     " heads, smaller than they are",
                 o.num_noise_heads());
  require_latent(o.num_noise_heads() % o.num_key_value_heads() == 0, "num_key_value_heads",
                 "a divisor of the " + std::to_string(o.num_noise_heads()) +
                     " noise heads, so that a group shares one kv head",
                 o.num_key_value_heads());
  require_latent(o.qk_rope_head_dim() >= 2 && o.qk_rope_head_dim() % 2 == 0 &&
                     o.qk_rope_head_dim() < o.head_dim(),
                 "qk_rope_head_dim",
                 "an even number from 2 to below head_dim " + std::to_string(o.head_dim()),
                 o.qk_rope_head_dim());
  if (o.sliding_window()) {
    require_latent(*o.sliding_window() >= 1, "sliding_window", "at least 1", *o.sliding_window());
  }
}

}  // namespace

double yarn_scale_factor(double mscale, double factor) {
  const double magnitude = factor > 1.0 ? 0.1 * mscale * std::log(factor) + 1.0 : 1.0;
  return magnitude * magnitude;
}

LatentAttentionOptions motif_3_options(int64_t layer) {
  if (layer < 0) throw_argument_error("layer", "0 or more", std::to_string(layer));
  constexpr int64_t kPeriod = 4, kTrainedTokens = 4096;
  constexpr double kStretch = 64.0;
  auto options = LatentAttentionOptions(4096, 80).num_key_value_heads(16).num_noise_heads(16);
  if (layer % kPeriod != 0) return options.sliding_window(128);
  return options
      .yarn(YarnOptions().factor(kStretch).original_max_position_embeddings(kTrainedTokens))
      .scale_factor(yarn_scale_factor(1.0, kStretch));
}

LatentDiffAttentionImpl::LatentDiffAttentionImpl(const LatentAttentionOptions& given)
    : options(given) {
  check_latent_options(options);
  const auto map = [&](const char* name, int64_t in, int64_t out) {
    return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)));
  };
  const auto norm = [&](const char* name, int64_t width) {
    return register_module(name, RMSNorm(RMSNormOptions(width)
                                             .eps(options.rms_norm_eps())
                                             .rounding(NormRounding::kBeforeWeight)));
  };
  const int64_t hidden = options.hidden_size(), heads = options.num_attention_heads();
  const int64_t signals = heads - options.num_noise_heads();
  const int64_t nope = options.head_dim() - options.qk_rope_head_dim();
  wq_a = map("wq_a", hidden, options.q_lora_rank());
  q_norm = norm("q_norm", options.q_lora_rank());
  wq_b = map("wq_b", options.q_lora_rank(), heads * options.head_dim());
  if (options.output_gate()) {
    wq_b_gate = map("wq_b_gate", options.q_lora_rank(), signals * options.v_head_dim());
  }
  wkv_a = map("wkv_a", hidden, options.kv_lora_rank() + options.qk_rope_head_dim());
  kv_norm = norm("kv_norm", options.kv_lora_rank());
  wkv_b = map("wkv_b", options.kv_lora_rank(),
              options.num_key_value_heads() * (nope + options.v_head_dim()));
  lambda_proj = map("lambda_proj", hidden, signals);
  wo = map("wo", signals * options.v_head_dim(), hidden);
}

/// theta^(-2j / width); with YaRN, slow frequencies are divided by the factor, and those between
/// beta_slow and beta_fast turns over the trained length are interpolated.
Tensor LatentDiffAttentionImpl::frequencies() const {
  const int64_t width = options.qk_rope_head_dim();
  const auto w = static_cast<double>(width);
  const Tensor j = torch::arange(width / 2, torch::kFloat64);
  const Tensor plain = torch::pow(options.rope_theta(), -2.0 * j / w);
  if (!options.yarn()) return plain;
  const YarnOptions& yarn = *options.yarn();
  const auto trained = static_cast<double>(yarn.original_max_position_embeddings());
  const auto pair_of = [&](double turns) {  // the pair that turns so often
    return w * std::log(trained / (2.0 * M_PI * turns)) / (2.0 * std::log(options.rope_theta()));
  };
  const double low = std::max(0.0, std::floor(pair_of(yarn.beta_fast())));
  const double high = std::min(w - 1.0, std::ceil(pair_of(yarn.beta_slow())));
  const Tensor slow = ((j - low) / std::max(high - low, 1e-3)).clamp(0.0, 1.0);
  return plain * (1.0 - slow) + plain / yarn.factor() * slow;
}

Tensor LatentDiffAttentionImpl::rotated(const Tensor& heads, const Tensor& positions) const {
  const auto type = heads.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  const Tensor angles = positions.to(type).unsqueeze(-1) *
                        frequencies().to(torch::TensorOptions().device(heads.device()).dtype(type));
  return rotate(heads, angles.cos(), angles.sin(), {.width = heads.size(-1)});
}

Tensor LatentDiffAttentionImpl::positions_of(const AttentionInput& input) const {
  if (input.positions) return *input.positions;
  const int64_t before = input.cache != nullptr ? input.cache->length() : 0;
  return torch::arange(before, before + input.x.size(1),
                       torch::TensorOptions().device(input.x.device()).dtype(torch::kLong));
}

void LatentDiffAttentionImpl::check_input(const AttentionInput& input) const {
  if (input.mask.cu_seqlens_q() || input.context) {
    throw_argument_error("mask.cu_seqlens_q", "[B, M, E] without packing or context",
                         "packed sequences or a context");
  }
  if (input.x.dim() == 3 && input.x.size(-1) == options.hidden_size()) return;
  throw_argument_error("x", c10::str("[B, M, ", options.hidden_size(), "]"),
                       c10::str("shape ", input.x.sizes()));
}

Tensor LatentDiffAttentionImpl::head_maps() const {
  return wkv_b->weight.unflatten(0, {options.num_key_value_heads(), -1});
}

HeadTensors LatentDiffAttentionImpl::expanded(const Tensor& q, const Latents& latents) const {
  const int64_t nope = options.head_dim() - options.qk_rope_head_dim();
  const int64_t kv_heads = options.num_key_value_heads();
  const auto parts = times(wkv_b, latents.c)
                         .unflatten(-1, {kv_heads, nope + options.v_head_dim()})
                         .split({nope, options.v_head_dim()}, -1);
  const Tensor shared = latents.k_pe.unsqueeze(-2).expand({-1, -1, kv_heads, -1});
  const Tensor k = torch::cat({parts[0], shared}, -1);
  return {.q1 = q, .k1 = k, .k2 = k, .v = parts[1]};
}

HeadTensors LatentDiffAttentionImpl::absorbed(const Tensor& q, const Latents& latents) const {
  const int64_t nope = options.head_dim() - options.qk_rope_head_dim();
  const Tensor maps = head_maps().narrow(1, 0, nope);  // [Hkv, nope, rank]
  const Tensor groups = q.narrow(-1, 0, nope).unflatten(-2, {options.num_key_value_heads(), -1});
  const Tensor taken = torch::einsum("bmkhd,kdr->bmkhr", {groups, maps}).flatten(2, 3);
  const Tensor k = torch::cat({latents.c, latents.k_pe}, -1).unsqueeze(-2);
  return {.q1 = torch::cat({taken, q.narrow(-1, nope, q.size(-1) - nope)}, -1),
          .k1 = k,
          .k2 = k,
          .v = latents.c.unsqueeze(-2)};
}

Tensor LatentDiffAttentionImpl::forward(const AttentionInput& input, AttentionTrace* trace) {
  check_input(input);
  const int64_t heads = options.num_attention_heads(), noise = options.num_noise_heads();
  const int64_t group = heads / noise, rope = options.qk_rope_head_dim();
  const int64_t nope = options.head_dim() - rope, tokens = input.x.size(1);
  const Tensor positions = positions_of(input);
  const int64_t dropped = input.cache != nullptr ? input.cache->dropped() : 0;
  const bool filled = input.cache != nullptr && !input.cache->empty();

  const Tensor a = q_norm(times(wq_a, input.x));
  const Tensor raw = times(wq_b, a).unflatten(-1, {heads, options.head_dim()});
  const Tensor q =
      torch::cat({raw.narrow(-1, 0, nope), rotated(raw.narrow(-1, nope, rope), positions)}, -1);
  const auto parts = times(wkv_a, input.x).split({options.kv_lora_rank(), rope}, -1);
  Latents latents{kv_norm(parts[0]), rotated(parts[1].unsqueeze(-2), positions).squeeze(-2)};
  if (input.cache != nullptr) {
    latents = {input.cache->append(kLatentSlot, latents.c),
               input.cache->append(kRotatedSlot, latents.k_pe)};
  }

  const bool absorbs = options.form() == LatentForm::kAbsorbed ||
                       (options.form() == LatentForm::kAuto && filled && tokens <= kFewTokens);
  HeadTensors call = absorbs ? absorbed(q, latents) : expanded(q, latents);
  const Tensor groups = call.q1.unflatten(-2, {noise, group});  // [B, M, noise, group, D]
  call.q1 = groups.narrow(-2, 0, group - 1).flatten(-3, -2);
  call.q2 = groups.select(-2, group - 1);
  const auto wide = input.x.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  call.lambda = times(lambda_proj, input.x).to(wide).sigmoid() * lambda_factor_;  // [B, M, Hs]
  const auto window = options.sliding_window() ? std::optional(*options.sliding_window() + 1)
                                               : std::optional<int64_t>();
  const double scale = options.scale_factor() / std::sqrt(static_cast<double>(options.head_dim()));
  call.options = mask_options(in_view(input.mask, dropped), true, window).scale(scale);
  if (trace != nullptr) trace->calls.push_back(call);

  Tensor y = attend(Route::kFused, call);  // [B, M, Hs, v] or, absorbed, [B, M, Hs, rank]
  if (absorbs) {
    const Tensor maps = head_maps().narrow(1, nope, options.v_head_dim());  // [Hkv, v, rank]
    const Tensor of_heads = y.unflatten(-2, {options.num_key_value_heads(), -1});
    y = torch::einsum("bmkhr,kvr->bmkhv", {of_heads, maps}).flatten(2, 3);
  }
  y = y.flatten(-2);
  if (options.output_gate()) y = y * times(wq_b_gate, a).sigmoid();
  return times(wo, y);
}

}  // namespace diffattn::nn
