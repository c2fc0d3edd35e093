// SPDX-License-Identifier: Apache-2.0
#include "nn/attention/layout.h"

namespace diffattn::nn {
namespace {

using torch::Tensor;

/// Splits x [..., 2n, D] into two views [..., n, D].
Pair split(const Tensor& x, HeadLayout layout) {
  if (layout == HeadLayout::kHalves) {
    const auto halves = x.chunk(2, -2);
    return {halves[0], halves[1]};
  }
  const Tensor pairs = x.unflatten(-2, {-1, 2});
  return {pairs.select(-2, 0), pairs.select(-2, 1)};
}

/// Splits q [..., G (signal + 1), D], with the noise head last in its group, into the signal heads
/// and the G noise heads.
Pair split_groups(const Tensor& q, int64_t noise_heads) {
  const Tensor groups = q.unflatten(-2, {noise_heads, -1});
  const int64_t signal = groups.size(-2) - 1;
  return {groups.narrow(-2, 0, signal).flatten(-3, -2), groups.select(-2, signal)};
}

bool is_legacy(const MultiheadDiffAttentionOptions& options) {
  return options.pairing() == GqaPairing::kLegacyNaive;
}

}  // namespace

Pair split_queries(const Tensor& q, const MultiheadDiffAttentionOptions& options) {
  switch (options.kind()) {
    case AttentionKind::kV1:
    case AttentionKind::kV2: return split(q, options.layout());
    case AttentionKind::kGrouped: return split_groups(q, *options.noise_heads());
    case AttentionKind::kTemperature:
    case AttentionKind::kPlain: break;
  }
  return {q, q};
}

Pair split_keys(const Tensor& k, const MultiheadDiffAttentionOptions& options,
                const AttentionSizes& sizes) {
  if (sizes.key_heads == sizes.kv_heads) return {k, k};
  if (!is_legacy(options)) return split(k, options.layout());
  return split(k.repeat_interleave(sizes.heads / sizes.kv_heads, -2), options.layout());
}

Tensor join_values(const Tensor& v, const MultiheadDiffAttentionOptions& options,
                   const AttentionSizes& sizes) {
  if (options.layout() == HeadLayout::kHalves && sizes.value_dim == 2 * sizes.head_dim) {
    const Pair halves = split(v.unflatten(-1, {-1, sizes.head_dim}), HeadLayout::kHalves);
    return torch::cat({halves.first, halves.second}, -1);
  }
  return v.unflatten(-1, {sizes.kv_heads, sizes.value_dim});
}

Tensor share_values(const Tensor& v, const MultiheadDiffAttentionOptions& options,
                    const AttentionSizes& sizes) {
  return is_legacy(options) ? v.repeat_interleave(sizes.heads / sizes.kv_heads, -2) : v;
}

}  // namespace diffattn::nn
