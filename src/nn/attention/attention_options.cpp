// SPDX-License-Identifier: Apache-2.0
//
// Throws for options that contradict each other, and computes the sizes that follow from them.

#include "diffattn/nn/attention_options.h"

#include <cmath>

namespace diffattn::nn {
namespace {

using Options = MultiheadDiffAttentionOptions;

std::string text(int64_t value) { return std::to_string(value); }

/// True if a kv head has two keys and a V of twice the width.
bool has_pairs(const Options& o) {
  return o.kind() == AttentionKind::kV1 || o.kind() == AttentionKind::kGrouped;
}

void at_least(const char* name, int64_t value, int64_t least) {
  if (value < least) throw_argument_error(name, "at least " + text(least), text(value));
}

void check_noise_heads(const Options& o) {
  if (o.kind() != AttentionKind::kGrouped) {
    if (!o.noise_heads()) return;
    throw_argument_error("noise_heads", "none, unless kind is grouped", text(*o.noise_heads()));
  }
  if (!o.noise_heads()) {
    throw_argument_error("noise_heads", "a number, since kind is grouped", "none");
  }
  at_least("noise_heads", *o.noise_heads(), 1);
  if (o.num_heads() % *o.noise_heads() != 0) {
    throw_argument_error("noise_heads", "a divisor of num_heads " + text(o.num_heads()),
                         text(*o.noise_heads()));
  }
}

int64_t check_kv_heads(const Options& o) {
  const bool grouped = o.kind() == AttentionKind::kGrouped;
  // All heads of a group, signal and noise, must share a kv head.
  const int64_t groups = grouped ? *o.noise_heads() : o.num_heads();
  const int64_t kv_heads = o.num_kv_heads().value_or(groups);
  at_least("num_kv_heads", kv_heads, 1);
  if (groups % kv_heads != 0) {
    throw_argument_error("num_kv_heads",
                         "a divisor of " + std::string(grouped ? "noise_heads " : "num_heads ") +
                             text(groups) + ", so that both maps of a head share a kv head",
                         text(kv_heads));
  }
  return kv_heads;
}

int64_t check_head_dim(const Options& o) {
  if (o.head_dim()) {
    at_least("head_dim", *o.head_dim(), 1);
    return *o.head_dim();
  }
  const int64_t parts = o.num_heads() * (has_pairs(o) ? 2 : 1);
  if (o.embed_dim() % parts != 0) {
    throw_argument_error("num_heads",
                         std::string("a number that divides embed_dim ") + text(o.embed_dim()) +
                             (has_pairs(o) ? " into pairs of sub-heads" : "") +
                             ", or head_dim to be given",
                         text(o.num_heads()));
  }
  return o.embed_dim() / parts;
}

void check_layout(const Options& o) {
  if (o.layout() == HeadLayout::kHalves &&
      (o.kind() == AttentionKind::kV2 || o.kind() == AttentionKind::kGrouped)) {
    throw_argument_error("layout", "stripes: both maps of a head share its kv head", "halves");
  }
  if (o.pairing() == GqaPairing::kLegacyNaive &&
      (o.kind() != AttentionKind::kV1 || o.layout() != HeadLayout::kStripes)) {
    throw_argument_error("pairing", "paired, unless kind is V1 with layout stripes",
                         "legacy_naive");
  }
}

void check_lambda(const Options& o, double init) {
  at_least("layer_index", o.layer_index(), 0);
  if (!std::isfinite(init)) {
    throw_argument_error("lambda_init", "a finite number", std::to_string(init));
  }
  if (!(o.lambda_std() >= 0.0)) {
    throw_argument_error("lambda_std", "0 or more", std::to_string(o.lambda_std()));
  }
  if (o.kind() != AttentionKind::kTemperature) return;
  if (!(o.temperature() > 1.0) || !std::isfinite(o.temperature())) {
    throw_argument_error("temperature", "a number above 1", std::to_string(o.temperature()));
  }
  if (o.lambda() == LambdaKind::kFixed && !(init >= 0.0 && init < 1.0)) {
    throw_argument_error("lambda_init", "at least 0 and below 1, since kind is temperature",
                         std::to_string(init));
  }
}

void check_mask(const Options& o) {
  if (!o.window()) return;
  at_least("window", *o.window(), 1);
  if (!o.causal()) {
    throw_argument_error("window",
                         o.cross_attention() ? "none with bidirectional cross-attention"
                                             : "none with bidirectional attention",
                         text(*o.window()));
  }
}

void check_cross_attention(const Options& o) {
  if (o.context_dim()) at_least("context_dim", *o.context_dim(), 1);
  if (!o.cross_attention()) {
    if (!o.context_dim()) return;
    throw_argument_error("context_dim", "none without cross_attention", text(*o.context_dim()));
  }
  if (o.rotary().style() != RotaryStyle::kNone) {
    throw_argument_error("rotary", "none with cross_attention", "a rotary embedding");
  }
  if (!o.names().qkv.empty()) {
    throw_argument_error("names.qkv",
                         "empty with cross_attention, since q has another source than k and v",
                         "'" + o.names().qkv + "'");
  }
}

void check_key_sharing(const Options& o) {
  if (o.key_sharing() == KeySharing::kNone) return;
  if (o.cross_attention()) {
    throw_argument_error("key_sharing", "none with cross_attention, whose keys are a context's",
                         "an owner or reader of keys");
  }
  if (o.key_sharing() == KeySharing::kReader && !o.names().qkv.empty()) {
    throw_argument_error("names.qkv", "empty for a reader, which projects queries only",
                         "'" + o.names().qkv + "'");
  }
  if (o.key_sharing() == KeySharing::kReader && o.rotary().style() != RotaryStyle::kNone) {
    throw_argument_error("rotary", "none for a reader, since the owner has rotated its keys",
                         "a rotary embedding");
  }
}

}  // namespace

double lambda_init(int64_t layer_index, LambdaSchedule schedule) {
  const auto l =
      static_cast<double>(schedule == LambdaSchedule::kMotif ? layer_index - 1 : layer_index);
  return 0.8 - 0.6 * std::exp(-0.3 * l);
}

AttentionSizes check(const Options& o) {
  at_least("embed_dim", o.embed_dim(), 1);
  at_least("num_heads", o.num_heads(), 1);
  check_noise_heads(o);
  check_layout(o);
  check_mask(o);
  check_cross_attention(o);
  check_key_sharing(o);
  if (!(o.norm_eps() >= 0.0) || !std::isfinite(o.norm_eps())) {
    throw_argument_error("norm_eps", "0 or more", std::to_string(o.norm_eps()));
  }
  if (!(o.dropout() >= 0.0 && o.dropout() < 1.0)) {
    throw_argument_error("dropout", "at least 0 and below 1", std::to_string(o.dropout()));
  }
  AttentionSizes sizes;
  sizes.heads = o.num_heads();
  sizes.kv_heads = check_kv_heads(o);
  sizes.head_dim = check_head_dim(o);
  sizes.value_dim = has_pairs(o) ? 2 * sizes.head_dim : sizes.head_dim;
  sizes.key_heads = has_pairs(o) ? 2 * sizes.kv_heads : sizes.kv_heads;
  switch (o.kind()) {
    case AttentionKind::kV1:
    case AttentionKind::kV2: sizes.query_heads = 2 * sizes.heads; break;
    case AttentionKind::kGrouped: sizes.query_heads = sizes.heads + *o.noise_heads(); break;
    case AttentionKind::kTemperature:
    case AttentionKind::kPlain: sizes.query_heads = sizes.heads; break;
  }
  sizes.lambda_init = o.lambda_init().value_or(lambda_init(o.layer_index(), o.lambda_schedule()));
  check_lambda(o, sizes.lambda_init);
  const bool scaled = o.head_norm() != HeadNorm::kNone && o.kind() != AttentionKind::kPlain;
  sizes.out_scale = o.out_scale().value_or(scaled ? 1.0 - sizes.lambda_init : 1.0);
  return sizes;
}

}  // namespace diffattn::nn
