// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/multihead_diff_attention.h"

#include "diffattn/ops_layers.h"
#include "nn/attention/inputs.h"
#include "nn/attention/layout.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

const char* kind_name(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kV1: return "v1";
    case AttentionKind::kV2: return "v2";
    case AttentionKind::kGrouped: return "grouped";
    case AttentionKind::kTemperature: return "temperature";
    case AttentionKind::kPlain: break;
  }
  return "plain";
}

}  // namespace

MultiheadDiffAttentionImpl::MultiheadDiffAttentionImpl(MultiheadDiffAttentionOptions given)
    : options(std::move(given)), sizes(check(options)) {
  register_projections();
  register_lambda_and_norm();
  rotary_ = Rotary(sizes.head_dim, options.rotary());
  reset_parameters();
}

Tensor MultiheadDiffAttentionImpl::forward(const AttentionInput& input, AttentionTrace* trace) {
  const HeadTensors heads = head_tensors(input);
  if (trace != nullptr) trace->calls.push_back(heads);
  const Tensor out = attend(options.route(), heads);  // [B, M, H, Dv]
  const Tensor y = diffattn::linear(out.flatten(-2), out_proj_->weight, out_proj_->bias);
  return options.dropout() > 0.0 ? torch::dropout(y, options.dropout(), is_training()) : y;
}

HeadTensors MultiheadDiffAttentionImpl::head_tensors(const AttentionInput& input) {
  check_input(input);
  const RotaryTable table = rotary_table(*rotary_, input);
  if (const auto merged = merged_heads(input, table)) return *merged;
  const int64_t dropped = input.cache != nullptr ? input.cache->dropped() : 0;
  const Pair q = split_queries(rotary_->rotate(query(input.x), table), options);
  const KeysAndValues kv = keys_and_values(input, table);
  const Pair k = split_keys(kv.k, options, sizes);
  return {.q1 = q.first,
          .q2 = q.second,
          .k1 = k.first,
          .k2 = k.second,
          .v = share_values(kv.v, options, sizes),
          .lambda = lambda(input.x, q.first.scalar_type()),
          .options = operation_options(in_view(input.mask, dropped)),
          .single_map = options.kind() == AttentionKind::kPlain};
}

MultiheadDiffAttentionImpl::KeysAndValues MultiheadDiffAttentionImpl::keys_and_values(
    const AttentionInput& input, const RotaryTable& table) {
  KvCache* cache = input.cache;
  if (options.cross_attention() && cache != nullptr && !cache->empty()) {
    return {cache->filled(kKeySlot), cache->filled(kValueSlot)};
  }
  if (options.key_sharing() == KeySharing::kReader) return {input.shared->k, input.shared->v};
  KeysAndValues kv = project_keys_and_values(options.cross_attention() ? *input.context : input.x);
  kv.k = rotary_->rotate(kv.k, table);
  if (cache != nullptr) kv = {cache->append(kKeySlot, kv.k), cache->append(kValueSlot, kv.v)};
  if (options.key_sharing() == KeySharing::kOwner) {
    input.shared->k = kv.k;
    input.shared->v = kv.v;
  }
  return kv;
}

std::optional<int64_t> MultiheadDiffAttentionImpl::needed_rows() const {
  if (!options.window() || shares_tensors()) return std::nullopt;
  return *options.window() - 1;
}

std::optional<RotaryTable> MultiheadDiffAttentionImpl::angles(const AttentionInput& input) {
  if (options.rotary().style() == RotaryStyle::kNone) return std::nullopt;
  return rotary_table(*rotary_, input);
}

AttentionOptions MultiheadDiffAttentionImpl::operation_options(const AttentionMask& mask) const {
  AttentionOptions result =
      mask_options(mask, options.causal(), options.window()).out_scale(sizes.out_scale);
  if (options.kind() == AttentionKind::kTemperature) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(sizes.head_dim));
    result.scale(scale).scale2(scale / options.temperature());
  }
  if (options.head_norm() != HeadNorm::kNone) {
    result.norm_eps(options.norm_eps());
    if (norm_weight_.defined()) result.norm_weight(norm_weight_);
  }
  return result;
}

void MultiheadDiffAttentionImpl::check_input(const AttentionInput& input) const {
  const bool packed = input.mask.cu_seqlens_q().has_value();
  const char* axes =
      packed ? "[total, width], packed by cu_seqlens, width " : "[B, M, width], width ";
  const auto check_source = [&](const char* name, const Tensor& x, int64_t width) {
    if (!x.defined()) throw_argument_error(name, "a tensor", "none");
    if (x.dim() == (packed ? 2 : 3) && x.size(-1) == width) return;
    throw_argument_error(name, axes + std::to_string(width), shape(x));
  };
  check_source("x", input.x, options.embed_dim());
  if (packed && input.cache != nullptr) {
    throw_argument_error("cache", "none with packed sequences", "one");
  }
  if (shares_tensors() && input.shared == nullptr) {
    throw_argument_error("shared", "the tensors that the layers of a stack share", "none");
  }
  if (options.key_sharing() == KeySharing::kReader && !input.shared->k.defined()) {
    throw_argument_error("shared.k", "the keys of the layer that owns them", "none");
  }
  if (!options.cross_attention()) {
    if (input.context) throw_argument_error("context", "none without cross_attention", "one");
  } else if (input.context) {
    check_source("context", *input.context, options.context_dim().value_or(options.embed_dim()));
  } else if (input.cache == nullptr || input.cache->empty()) {
    throw_argument_error("context", "a tensor, or a cache that was filled from one", "none");
  }
}

void MultiheadDiffAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "diffattn::nn::MultiheadDiffAttention(kind=" << kind_name(options.kind())
         << ", embed_dim=" << options.embed_dim() << ", heads=" << sizes.heads
         << ", kv_heads=" << sizes.kv_heads << ", head_dim=" << sizes.head_dim
         << ", value_dim=" << sizes.value_dim << ", lambda_init=" << sizes.lambda_init
         << ", parameters=" << parameter_count() << ")";
}

}  // namespace diffattn::nn
