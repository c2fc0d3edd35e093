// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/shared_diff_attention.h"

#include <algorithm>

#include "nn/attention/layout.h"

namespace diffattn::nn {

using torch::Tensor;

LowRankImpl::LowRankImpl(int64_t in, int64_t out, int64_t rank) {
  const auto linear = [](int64_t from, int64_t to) {
    return torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(false));
  };
  down = register_module("down", linear(in, rank));
  up = register_module("up", linear(rank, out));
}

SharedDiffAttentionImpl::SharedDiffAttentionImpl(const MultiheadDiffAttentionOptions& options_,
                                                 int64_t rank_)
    : MultiheadDiffAttentionImpl(options_), rank(rank_) {
  if (options.kind() != AttentionKind::kV1) {
    throw_argument_error("kind", "V1 for Shared-DIFF", "another one");
  }
  const ParameterNames& names = options.names();
  if (!names.qkv.empty()) {
    throw_argument_error("names.qkv",
                         "empty for Shared-DIFF, whose q and k have separate base projections",
                         "'" + names.qkv + "'");
  }
  const int64_t embed = options.embed_dim(), source = options.context_dim().value_or(embed);
  const int64_t q_rows = sizes.heads * sizes.head_dim, k_rows = sizes.kv_heads * sizes.head_dim;
  const int64_t most = std::min({embed, source, k_rows});
  if (rank < 1 || rank > most) {
    throw_argument_error("rank", "1 to " + std::to_string(most) + ", the smaller dimension of W_K",
                         std::to_string(rank));
  }
  unregister_module(names.q);
  unregister_module(names.k);
  const auto base = [&](const std::string& name, int64_t in, int64_t out) {
    return register_module(
        name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(options.qkv_bias())));
  };
  q_proj_ = base(names.q, embed, q_rows);
  k_proj_ = base(names.k, source, k_rows);
  q1_delta = register_module("q1_delta", LowRank(embed, q_rows, rank));
  q2_delta = register_module("q2_delta", LowRank(embed, q_rows, rank));
  k1_delta = register_module("k1_delta", LowRank(source, k_rows, rank));
  k2_delta = register_module("k2_delta", LowRank(source, k_rows, rank));
}

Tensor SharedDiffAttentionImpl::arrange(const Tensor& first, const Tensor& second,
                                        int64_t count) const {
  const Tensor a = first.unflatten(-1, {count, sizes.head_dim});
  const Tensor b = second.unflatten(-1, {count, sizes.head_dim});
  if (options.layout() == HeadLayout::kHalves) return torch::cat({a, b}, -2);
  return torch::stack({a, b}, -2).flatten(-3, -2);
}

Tensor SharedDiffAttentionImpl::query(const Tensor& x) {
  const Tensor base = q_proj_(x);
  return arrange(base + q1_delta(x), base + q2_delta(x), sizes.heads);
}

MultiheadDiffAttentionImpl::KeysAndValues SharedDiffAttentionImpl::project_keys_and_values(
    const Tensor& source) {
  const Tensor base = k_proj_(source);
  return {arrange(base + k1_delta(source), base + k2_delta(source), sizes.kv_heads),
          join_values(v_proj_(source), options, sizes)};
}

}  // namespace diffattn::nn
