// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/nn/multihead_diff_attention.h"

namespace diffattn::nn {

/// (P1 - lambda P2 + lambda G) v of DINT, [B, M, H, Dv] (packed [total, H, Dv]), before the head
/// norm, with gradients. Every row of that map sums to 1.
///
/// G is P1 averaged over its rows: in a causal map over rows up to the row itself,
/// G_t = (1 / t) sum_{m <= t} P1[m], else over all rows (as published). No map is needed for it:
/// G_t v is the mean of the rows of P1 v, so the memory is O(N). Rows that stand at padded columns
/// do not count. A window narrows P1 and P2; G still averages over all earlier rows.
///
/// With a cache (causal maps only), slot 2 keeps the running sums of P1 v in float32, one row per
/// token so that the cache can be rewound; `heads` are then the newest tokens against all keys.
torch::Tensor dint_heads(Route route, const HeadTensors& heads, KvCache* cache = nullptr);

/// DINT: V1 with the averaged map added, all parameters as in V1. `options.causal` chooses between
/// the running and the full average. Traces hold the map without G.
class DintAttentionImpl : public MultiheadDiffAttentionImpl {
 public:
  /// Throws for kinds other than V1 and for cross-attention.
  explicit DintAttentionImpl(const MultiheadDiffAttentionOptions& options);

  using MultiheadDiffAttentionImpl::forward;
  torch::Tensor forward(const AttentionInput& input, AttentionTrace* trace = nullptr) override;
};
TORCH_MODULE(DintAttention);

}  // namespace diffattn::nn
