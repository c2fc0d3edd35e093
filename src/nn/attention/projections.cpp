// SPDX-License-Identifier: Apache-2.0
//
// The linear projections of a layer: x -> q, k, v, and the output projection.

#include "diffattn/nn/multihead_diff_attention.h"
#include "diffattn/ops_layers.h"
#include "nn/attention/layout.h"
#include "ops/layers/linears.h"
#include "ops/layers/projected_heads.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

torch::nn::Linear make_linear(int64_t in, int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

LinearMap map_through(const torch::nn::Linear& linear) { return {linear->weight, linear->bias}; }

/// Returns the map to outputs [begin, begin + count) of a linear map.
LinearMap rows_of(const torch::nn::Linear& linear, int64_t begin, int64_t count) {
  return {linear->weight.narrow(0, begin, count),
          linear->bias.defined() ? linear->bias.narrow(0, begin, count) : Tensor()};
}

/// Reorders the rows of a matrix or bias from (half, head, d) to (head, half, d).
Tensor with_adjacent_halves(const Tensor& rows, int64_t head_dim) {
  return rows.unflatten(0, {2, -1, head_dim}).transpose(0, 1).flatten(0, 2);
}

}  // namespace

void MultiheadDiffAttentionImpl::register_projections() {
  const int64_t embed = options.embed_dim();
  const int64_t q_rows = sizes.query_heads * sizes.head_dim;
  const int64_t k_rows = sizes.key_heads * sizes.head_dim;
  const int64_t v_rows = sizes.kv_heads * sizes.value_dim;
  const ParameterNames& names = options.names();
  const bool bias = options.qkv_bias();
  if (!names.qkv.empty()) {
    qkv_proj_ = register_module(names.qkv, make_linear(embed, q_rows + k_rows + v_rows, bias));
  } else {
    q_proj_ = register_module(names.q, make_linear(embed, q_rows, bias));
  }
  if (!q_proj_.is_empty() && options.key_sharing() != KeySharing::kReader) {
    const int64_t source = options.context_dim().value_or(embed);
    k_proj_ = register_module(names.k, make_linear(source, k_rows, bias));
    v_proj_ = register_module(names.v, make_linear(source, v_rows, bias));
  }
  out_proj_ = register_module(
      names.out, make_linear(sizes.heads * sizes.value_dim, embed, options.out_bias()));
}

Tensor MultiheadDiffAttentionImpl::query(const Tensor& x) {
  const int64_t rows = sizes.query_heads * sizes.head_dim;
  const LinearMap map = qkv_proj_ ? rows_of(qkv_proj_, 0, rows) : map_through(q_proj_);
  const Tensor q = diffattn::linear(x, map.weight, map.bias);
  return q.unflatten(-1, {sizes.query_heads, sizes.head_dim});
}

MultiheadDiffAttentionImpl::KeysAndValues MultiheadDiffAttentionImpl::project_keys_and_values(
    const Tensor& source) {
  std::vector<Tensor> kv;
  if (qkv_proj_) {
    const int64_t k_begin = sizes.query_heads * sizes.head_dim;
    const int64_t k_rows = sizes.key_heads * sizes.head_dim;
    kv = linears(source, {rows_of(qkv_proj_, k_begin, k_rows),
                          rows_of(qkv_proj_, k_begin + k_rows, sizes.kv_heads * sizes.value_dim)});
  } else {
    const bool halves =
        options.layout() == HeadLayout::kHalves && sizes.value_dim == 2 * sizes.head_dim;
    const int64_t rows = source.numel() / std::max<int64_t>(1, source.size(-1));
    if (halves && rows > 2 * sizes.kv_heads * sizes.value_dim) {
      // V needs the two halves of a head next to each other. With many tokens it is cheaper to
      // reorder the rows of the matrix than those of the result.
      const Tensor weight = with_adjacent_halves(v_proj_->weight, sizes.head_dim);
      const Tensor bias =
          v_proj_->bias.defined() ? with_adjacent_halves(v_proj_->bias, sizes.head_dim) : Tensor();
      kv = linears(source, {map_through(k_proj_), {weight, bias}});
      return {kv[0].unflatten(-1, {sizes.key_heads, sizes.head_dim}),
              kv[1].unflatten(-1, {sizes.kv_heads, sizes.value_dim})};
    }
    kv = linears(source, {map_through(k_proj_), map_through(v_proj_)});
  }
  return {kv[0].unflatten(-1, {sizes.key_heads, sizes.head_dim}),
          join_values(kv[1], options, sizes)};
}

std::optional<HeadTensors> MultiheadDiffAttentionImpl::merged_heads(const AttentionInput& input,
                                                                    const RotaryTable& table) {
  const bool rotates = options.rotary().style() != RotaryStyle::kNone;
  const RotateOptions rotation = rotary_->rotation();
  const bool shares_heads =
      options.pairing() == GqaPairing::kLegacyNaive && sizes.heads != sizes.kv_heads;
  if (!has_linear_projections() || qkv_proj_ || q_proj_->bias.defined() ||
      options.cross_attention() || input.cache != nullptr || shares_heads || shares_tensors() ||
      options.kind() == AttentionKind::kGrouped ||
      (rotates && (rotation.interleaved || rotation.width != sizes.head_dim))) {
    return std::nullopt;
  }
  const ProjectionWeights weights{q_proj_->weight, k_proj_->weight, v_proj_->weight};
  if (!takes_projected_heads(input.x, weights)) return std::nullopt;
  const bool halves = options.layout() == HeadLayout::kHalves;
  const int64_t dim = sizes.head_dim;
  ProjectionLayout layout{.parts = {},
                          .head_dim = dim,
                          .cos = table.cos,
                          .sin = table.sin,
                          .joins_value_halves = halves && sizes.value_dim == 2 * dim};
  int64_t column = 0;
  const auto add = [&](int64_t heads, bool pairs) {
    const int64_t stride = pairs && !halves ? 2 * dim : dim;
    const int64_t count = pairs ? heads / 2 : heads;
    layout.parts.push_back({column, count, stride, dim});
    if (pairs) layout.parts.push_back({column + (halves ? count * dim : dim), count, stride, dim});
    column += heads * dim;
  };
  const bool two_queries =
      options.kind() == AttentionKind::kV1 || options.kind() == AttentionKind::kV2;
  const bool two_keys = sizes.key_heads != sizes.kv_heads;
  add(sizes.query_heads, two_queries);
  add(sizes.key_heads, two_keys);
  layout.parts.push_back({column, sizes.kv_heads, sizes.value_dim, sizes.value_dim});
  const std::vector<Tensor> heads = projected_heads(input.x, weights, layout);
  const Tensor &q1 = heads.front(), &q2 = heads[two_queries ? 1 : 0];
  const Tensor &k2 = heads[heads.size() - 2], &k1 = heads[heads.size() - (two_keys ? 3 : 2)];
  return HeadTensors{.q1 = q1,
                     .q2 = q2,
                     .k1 = k1,
                     .k2 = k2,
                     .v = heads.back(),
                     .lambda = lambda(input.x, q1.scalar_type()),
                     .options = operation_options(input.mask),
                     .single_map = options.kind() == AttentionKind::kPlain};
}

}  // namespace diffattn::nn
