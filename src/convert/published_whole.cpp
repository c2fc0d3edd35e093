// SPDX-License-Identifier: Apache-2.0
//
// Copies whole models of Motif-2 and Phi-4-mini-flash. A folder of ours has the published names, so
// both directions check names, shapes and types against config.json and copy every byte.

#include "convert/plan.h"
#include "diffattn/io/error.h"
#include "diffattn/io/json.h"

namespace diffattn::convert {
namespace {

using io::JsonValue;

constexpr int64_t kMaxSize = 1 << 20;

/// Reads keys of config.json that only these models have.
struct PublishedKeys {
  JsonValue root;

  bool flag(const char* key, bool otherwise) const {
    const auto value = root.find(key);
    return value ? value->to_bool() : otherwise;
  }
  int64_t size(const char* key, int64_t otherwise) const {
    const auto value = root.find(key);
    return value ? value->to_int(1, kMaxSize) : otherwise;
  }
};

/// Checks the keys that both models have, and notes what config.json loses.
PublishedKeys published_keys(Plan& plan, const char* activation) {
  const Model& m = plan.model();
  PublishedKeys keys{JsonValue(m.config, m.path)};
  if (plan.options().attention_only) {
    throw io::Error(m.path, "expected --to diffattn with --attention-only, got --to " +
                                std::string(format_name(plan.options().to)) +
                                ", which copies all layers");
  }
  if (const auto act = keys.root.find("hidden_act"); act && act->to_string() != activation) {
    act->fail("\"" + std::string(activation) + "\"");
  }
  if (keys.root.find("auto_map")) {
    plan.note("config.json loses auto_map, since convert copies no code");
  }
  return keys;
}

/// Adds a linear map's weight, and its bias if it has one.
void copy_map(Plan& plan, const std::string& name, int64_t out, int64_t in, bool bias) {
  plan.copy(name + ".weight", {out, in});
  if (bias) plan.copy(name + ".bias", {out});
}

void copy_lambda_vectors(Plan& plan, const std::string& prefix) {
  for (const char* name : {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"}) {
    plan.copy(prefix + name, {plan.model().head_dim});
  }
  plan.copy(prefix + "subln.weight", {2 * plan.model().head_dim});
}

void copy_embedding_and_head(Plan& plan, bool tied) {
  const Model& m = plan.model();
  plan.copy("model.embed_tokens.weight", {m.vocabulary, m.hidden});
  if (!tied) plan.copy("lm_head.weight", {m.vocabulary, m.hidden});
}

/// The sizes of a SambaY beside those that every model has.
struct SambaY {
  int64_t channels, states, taps, rank;
  bool conv_bias, proj_bias;
};

SambaY sambay_of(const Model& m, const PublishedKeys& keys) {
  const auto rank = keys.root.find("mamba_dt_rank");
  if (rank && rank->is_string() && rank->to_string(16) != "auto") {
    rank->fail("a number or \"auto\"");
  }
  return {.channels = keys.size("mamba_expand", 2) * m.hidden,
          .states = keys.size("mamba_d_state", 16),
          .taps = keys.size("mamba_d_conv", 4),
          .rank = rank && !rank->is_string() ? rank->to_int(1, kMaxSize) : (m.hidden + 15) / 16,
          .conv_bias = keys.flag("mamba_conv_bias", true),
          .proj_bias = keys.flag("mamba_proj_bias", false)};
}

void copy_mamba(Plan& plan, const std::string& prefix, const SambaY& s) {
  const int64_t hidden = plan.model().hidden;
  copy_map(plan, prefix + "in_proj", 2 * s.channels, hidden, s.proj_bias);
  plan.copy(prefix + "conv1d.weight", {s.channels, 1, s.taps});
  if (s.conv_bias) plan.copy(prefix + "conv1d.bias", {s.channels});
  copy_map(plan, prefix + "x_proj", s.rank + 2 * s.states, s.channels, false);
  copy_map(plan, prefix + "dt_proj", s.channels, s.rank, true);
  plan.copy(prefix + "A_log", {s.channels, s.states});
  plan.copy(prefix + "D", {s.channels});
  copy_map(plan, prefix + "out_proj", hidden, s.channels, s.proj_bias);
}

/// Copies the mixer of a layer: Mamba up to the middle and gated memory behind it, between them
/// attention, which has queries alone once a layer owns the keys of all later ones.
void copy_sambay_mixer(Plan& plan, int64_t layer, const std::string& prefix, const SambaY& s) {
  const Model& m = plan.model();
  const int64_t half = m.layers / 2;
  if (layer % 2 == 0 && layer <= half) return copy_mamba(plan, prefix, s);
  if (layer % 2 == 0) {
    copy_map(plan, prefix + "in_proj", s.channels, m.hidden, s.proj_bias);
    copy_map(plan, prefix + "out_proj", m.hidden, s.channels, s.proj_bias);
    return;
  }
  const int64_t q_rows = m.heads * m.head_dim;
  const int64_t kv_rows = layer <= half + 1 ? 2 * m.kv_heads * m.head_dim : 0;
  copy_map(plan, prefix + "Wqkv", q_rows + kv_rows, m.hidden, true);
  copy_map(plan, prefix + "out_proj", m.hidden, q_rows, true);
  copy_lambda_vectors(plan, prefix + "inner_cross_attn.");
}

}  // namespace

void plan_whole_motif(Plan& plan) {
  const Model& m = plan.model();
  const PublishedKeys keys = published_keys(plan, "poly_norm");
  if (const auto attention = keys.root.find("attention_cls");
      attention && attention->to_string(64) == "gdla") {
    attention->fail("a Motif-2 model; this library has only the attention of Motif-3");
  }
  const bool bias = keys.flag("use_bias", false) || keys.flag("attention_bias", false) ||
                    keys.flag("qkv_bias", false);
  copy_embedding_and_head(plan, m.tied);
  plan.copy("model.norm.weight", {m.hidden});
  const int64_t signals = m.noise_heads > 0 ? m.heads - m.noise_heads : m.heads / 2;
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const std::string attention = attention_prefix(layer);
    plan.copy(prefix + "input_layernorm.weight", {m.hidden});
    plan.copy(prefix + "post_attention_layernorm.weight", {m.hidden});
    copy_map(plan, attention + "q_proj", m.heads * m.head_dim, m.hidden, bias);
    copy_map(plan, attention + "k_proj", m.kv_heads * m.head_dim, m.hidden, bias);
    copy_map(plan, attention + "v_proj", m.kv_heads * m.head_dim, m.hidden, bias);
    copy_map(plan, attention + "o_proj", m.hidden, 2 * signals * m.head_dim, bias);
    copy_lambda_vectors(plan, attention);
    copy_map(plan, prefix + "mlp.gate_proj", m.intermediate, m.hidden, bias);
    copy_map(plan, prefix + "mlp.up_proj", m.intermediate, m.hidden, bias);
    copy_map(plan, prefix + "mlp.down_proj", m.hidden, m.intermediate, bias);
    plan.copy(prefix + "mlp.act_fn.weight", {3});
    plan.copy(prefix + "mlp.act_fn.bias", {1});
  }
}

void plan_whole_phi4_flash(Plan& plan) {
  const Model& m = plan.model();
  const PublishedKeys keys = published_keys(plan, "silu");
  if (m.layers % 4 != 0) keys.root.at("num_hidden_layers").fail("a multiple of 4");
  const SambaY sizes = sambay_of(m, keys);
  copy_embedding_and_head(plan, keys.flag("tie_word_embeddings", true));
  const auto copy_norm = [&](const std::string& name) {
    plan.copy(name + ".weight", {m.hidden});
    plan.copy(name + ".bias", {m.hidden});
  };
  copy_norm("model.final_layernorm");
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    copy_norm(prefix + "input_layernorm");
    copy_norm(prefix + "post_attention_layernorm");
    copy_map(plan, prefix + "mlp.fc1", 2 * m.intermediate, m.hidden, false);
    copy_map(plan, prefix + "mlp.fc2", m.hidden, m.intermediate, false);
    copy_sambay_mixer(plan, layer, prefix + "attn.", sizes);
  }
}

}  // namespace diffattn::convert
