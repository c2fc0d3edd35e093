// SPDX-License-Identifier: Apache-2.0
//
// Renames the attention layers of Motif and Phi-4-mini-flash to our names (presets motif_2_6b,
// motif_2_12_7b, phi4_flash). published_whole.cpp copies whole models.

#include "convert/plan.h"
#include "diffattn/io/error.h"
#include "diffattn/io/json.h"

namespace diffattn::convert {
namespace {

constexpr double kHeadNormEps = 1e-5;  // default of both models

void copy_lambda(Plan& plan, const std::string& from, const std::string& to) {
  for (const char* name : {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"}) {
    plan.copy(from + name, {plan.model().head_dim}, to + name);
  }
  plan.copy(from + "subln.weight", {2 * plan.model().head_dim}, to + "subln.weight");
}

void leave_rest(Plan& plan) {
  for (const std::string& name : plan.unused()) plan.leave(name, "not attention");
}

void need_attention_only(const Plan& plan, const std::string& why) {
  if (plan.options().attention_only) return;
  throw io::Error(
      plan.model().path,
      why + ", so the model needs its own layout, which every verb reads as it is; --to " +
          std::string(format_name(plan.model().format)) +
          " copies the whole model, --attention-only makes a folder with its " +
          "attention layers");
}

/// Returns the columns of o_proj. With noise heads, each signal head has values of width 2d;
/// without them, each pair of heads has.
int64_t output_columns(const Model& m) {
  const int64_t heads = m.noise_heads > 0 ? 2 * (m.heads - m.noise_heads) : m.heads;
  return heads * m.head_dim;
}

}  // namespace

void plan_motif(Plan& plan) {
  const Model& m = plan.model();
  const io::JsonValue config(m.config, m.path);
  const auto activation = config.find("hidden_act"), head_eps = config.find("attn_rms_norm_eps");
  const std::string act = activation ? activation->to_string() : "poly_norm";
  const double eps = head_eps ? head_eps->to_double(0.0, 1.0) : kHeadNormEps;
  if (act != "silu") need_attention_only(plan, "the feed-forward layers use PolyNorm");
  if (eps != m.rms_norm_eps) need_attention_only(plan, "the head norms have a separate eps");
  for (const char* key : {"use_bias", "attention_bias", "qkv_bias"}) {
    if (const auto bias = config.find(key); bias && bias->to_bool()) bias->fail("false");
  }
  if (m.noise_heads > 0 && m.kv_heads != 2 * m.noise_heads) {
    throw io::Error(m.path, "expected a pair of kv heads for each of the " +
                                std::to_string(m.noise_heads) + " noise heads, got " +
                                std::to_string(m.kv_heads) + " kv heads");
  }
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string prefix = attention_prefix(layer);
    plan.copy(prefix + "q_proj.weight", {m.heads * m.head_dim, m.hidden});
    plan.copy(prefix + "k_proj.weight", {m.kv_heads * m.head_dim, m.hidden});
    plan.copy(prefix + "v_proj.weight", {m.kv_heads * m.head_dim, m.hidden});
    plan.copy(prefix + "o_proj.weight", {m.hidden, output_columns(m)});
    copy_lambda(plan, prefix, prefix);
  }
  if (plan.options().attention_only) {
    leave_rest(plan);
    plan.change("attention_only", true);
    plan.change("rms_norm_eps", eps);
  } else {
    plan.copy_rest();
  }
  plan.change("attention", m.noise_heads > 0 ? "motif_2_12_7b" : "motif_2_6b");
}

void plan_phi4_flash(Plan& plan) {
  const Model& m = plan.model();
  need_attention_only(plan, "the model has Mamba layers and gated memory units");
  const int64_t q_rows = m.heads * m.head_dim, rows = q_rows + 2 * m.kv_heads * m.head_dim;
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string from = "model.layers." + std::to_string(layer) + ".attn.";
    const std::string to = attention_prefix(layer), inner = "inner_cross_attn.";
    if (!plan.has(from + "Wqkv.weight")) continue;
    if (plan.has(from + inner + "lambda_q1") && plan.rows_of(from + "Wqkv.weight") == q_rows) {
      plan.note("layer " + std::to_string(layer) + " is left out: it has only queries and reads " +
                "the keys and values of another layer");
      continue;
    }
    plan.copy(from + "Wqkv.weight", {rows, m.hidden}, to + "Wqkv.weight");
    plan.copy(from + "Wqkv.bias", {rows}, to + "Wqkv.bias");
    plan.copy(from + "out_proj.weight", {m.hidden, q_rows}, to + "out_proj.weight");
    plan.copy(from + "out_proj.bias", {m.hidden}, to + "out_proj.bias");
    copy_lambda(plan, from + inner, to + inner);
    layers.push_back(layer);
  }
  if (layers.empty()) {
    throw io::Error(plan.source().name(), "expected attention layers, got none");
  }
  leave_rest(plan);
  plan.change("attention", "phi4_flash");
  plan.change("attention_bias", true);
  plan.change("attention_only", true);
  plan.change("attention_layers", layers);
  plan.change("rms_norm_eps", kHeadNormEps);
}

}  // namespace diffattn::convert
