// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/presets.h"

#include <algorithm>
#include <functional>

#include "diffattn/nn/dint_attention.h"
#include "diffattn/nn/introspective_attention.h"
#include "diffattn/nn/multihead_diff_attention.h"

namespace diffattn::nn {
namespace {

using Options = MultiheadDiffAttentionOptions;

/// Returns half of a head count. Throws for an odd one.
int64_t pairs(const char* name, int64_t count) {
  if (count < 2 || count % 2 != 0) {
    throw_argument_error(name, "an even number: heads come in pairs", std::to_string(count));
  }
  return count / 2;
}

int64_t kv_heads(const PresetOptions& p) {
  return p.num_key_value_heads().value_or(p.num_attention_heads());
}

int64_t head_dim(const PresetOptions& p) {
  if (p.head_dim()) return *p.head_dim();
  if (p.num_attention_heads() < 1 || p.hidden_size() % p.num_attention_heads() != 0) {
    throw_argument_error(
        "num_attention_heads",
        "a divisor of hidden_size " + std::to_string(p.hidden_size()) + ", or head_dim to be given",
        std::to_string(p.num_attention_heads()));
  }
  return p.hidden_size() / p.num_attention_heads();
}

/// Returns the options that all presets share.
Options sized(const PresetOptions& p, int64_t heads, int64_t kv, RotaryStyle style,
              const char* out_name) {
  RotaryOptions rotary = p.rope_parameters();
  ParameterNames names;
  names.out = out_name;
  return Options(p.hidden_size(), heads)
      .num_kv_heads(kv)
      .head_dim(head_dim(p))
      .rotary(rotary.style(p.cross_attention() ? RotaryStyle::kNone : style))
      .layer_index(p.layer_index())
      .norm_eps(p.rms_norm_eps())
      .lambda_std(p.lambda_std_dev())
      .qkv_bias(p.attention_bias().value_or(false))
      .out_bias(p.attention_bias().value_or(false))
      .causal(p.causal())
      .window(p.window())
      .cross_attention(p.cross_attention())
      .context_dim(p.context_dim())
      .dropout(p.dropout())
      .names(names);
}

/// Returns the options of attentions with pairs of sub-heads (V1 and similar ones).
Options paired(const PresetOptions& p, RotaryStyle style, const char* out_name) {
  const int64_t heads = pairs("num_attention_heads", p.num_attention_heads());
  return sized(p, heads, pairs("num_key_value_heads", kv_heads(p)), style, out_name);
}

Options microsoft_v1(const PresetOptions& p) {
  return paired(p, RotaryStyle::kInterleaved, "out_proj");
}

Options microsoft_v2(const PresetOptions& p) {
  return sized(p, p.num_attention_heads(), kv_heads(p), RotaryStyle::kInterleaved, "o_proj")
      .kind(AttentionKind::kV2)
      .lambda(LambdaKind::kToken)
      .head_norm(HeadNorm::kNone);
}

Options diffllama(const PresetOptions& p) {
  return paired(p, RotaryStyle::kHalfSplit, "o_proj")
      .layout(HeadLayout::kHalves)
      .head_norm(HeadNorm::kPlain);
}

/// One matrix for q, k and v, biases, no rotary embedding. Cross-attention has separate matrices.
/// Not covered: layers that reuse another layer's keys and values and have a q matrix only.
Options phi4_flash(const PresetOptions& p) {
  ParameterNames names;
  if (!p.cross_attention()) names.qkv = "Wqkv";
  names.inner = "inner_cross_attn";
  return paired(p, RotaryStyle::kNone, "out_proj")
      .qkv_bias(p.attention_bias().value_or(true))
      .out_bias(p.attention_bias().value_or(true))
      .names(names);
}

Options motif_2_6b(const PresetOptions& p) {
  return paired(p, RotaryStyle::kHalfSplit, "o_proj").lambda_schedule(LambdaSchedule::kMotif);
}

/// One noise head per pair of kv heads; all others are signal heads.
Options motif_2_12_7b(const PresetOptions& p) {
  const int64_t noise = pairs("num_key_value_heads", kv_heads(p));
  if (p.num_attention_heads() <= noise) {
    throw_argument_error("num_attention_heads",
                         "more than the " + std::to_string(noise) + " noise heads",
                         std::to_string(p.num_attention_heads()));
  }
  return sized(p, p.num_attention_heads() - noise, noise, RotaryStyle::kHalfSplit, "o_proj")
      .kind(AttentionKind::kGrouped)
      .noise_heads(noise)
      .lambda_schedule(LambdaSchedule::kMotif);
}

/// One map. The preset "temperature" adds a second one of the same q and k.
Options transformer(const PresetOptions& p) {
  return sized(p, p.num_attention_heads(), kv_heads(p), RotaryStyle::kHalfSplit, "o_proj")
      .kind(AttentionKind::kPlain)
      .head_norm(HeadNorm::kNone);
}

Options temperature(const PresetOptions& p) {
  return transformer(p).kind(AttentionKind::kTemperature).lambda(LambdaKind::kFixed);
}

struct Preset {
  std::string name;
  std::function<Options(const PresetOptions&)> options;  // null: not MultiheadDiffAttention
};

const std::vector<Preset>& presets() {
  static const std::vector<Preset> list{
      {"microsoft_v1", microsoft_v1}, {"microsoft_v2", microsoft_v2},
      {"diffllama", diffllama},       {"phi4_flash", phi4_flash},
      {"motif_2_6b", motif_2_6b},     {"motif_2_12_7b", motif_2_12_7b},
      {"dint", microsoft_v1},         {"introspective", nullptr},
      {"temperature", temperature},   {"transformer", transformer}};
  return list;
}

std::shared_ptr<AttentionLayer> introspective(const PresetOptions& p) {
  if (p.cross_attention()) {
    throw_argument_error("cross_attention", "self-attention for introspective attention",
                         "cross-attention");
  }
  if (p.head_dim() && *p.head_dim() * p.num_attention_heads() != p.hidden_size()) {
    throw_argument_error("head_dim",
                         "hidden_size / num_attention_heads for introspective attention",
                         std::to_string(*p.head_dim()));
  }
  RotaryOptions rotary = p.rope_parameters();
  return std::make_shared<IntrospectiveAttentionImpl>(
      IntrospectiveAttentionOptions(p.hidden_size(), p.num_attention_heads())
          .num_kv_heads(p.num_key_value_heads())
          .norm_eps(p.rms_norm_eps())
          .causal(p.causal())
          .window(p.window())
          .rotary(rotary.style(RotaryStyle::kHalfSplit)));
}

}  // namespace

const std::vector<std::string>& preset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const Preset& preset : presets()) result.push_back(preset.name);
    return result;
  }();
  return names;
}

namespace {

[[noreturn]] void fail_unknown(const std::string& name, bool (*known)(const Preset&)) {
  std::string names;
  for (const Preset& preset : presets()) {
    if (known(preset)) names += (names.empty() ? "" : ", ") + preset.name;
  }
  throw_argument_error("preset", "one of " + names, "'" + name + "'");
}

}  // namespace

Options preset_options(const std::string& name, const PresetOptions& options) {
  for (const Preset& preset : presets()) {
    if (preset.name == name && preset.options) return preset.options(options);
  }
  fail_unknown(name, [](const Preset& preset) { return preset.options != nullptr; });
}

std::shared_ptr<AttentionLayer> make_preset(const std::string& name, const PresetOptions& options) {
  const auto& names = preset_names();
  if (std::ranges::find(names, name) == names.end()) {
    fail_unknown(name, [](const Preset&) { return true; });
  }
  if (name == "introspective") return introspective(options);
  const Options point = preset_options(name, options);
  if (name == "dint") return std::make_shared<DintAttentionImpl>(point);
  return std::make_shared<MultiheadDiffAttentionImpl>(point);
}

void print_preset(std::ostream& stream, const std::string& preset, const PresetOptions& options) {
  const auto layer = make_preset(preset, options);
  stream << preset << ": " << layer->parameter_count() << " parameters, " << layer->name() << '\n';
}

}  // namespace diffattn::nn
