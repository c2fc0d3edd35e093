// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/nn/multihead_diff_attention.h"

namespace diffattn::nn {

/// Computes (P1 - lambda P2 + lambda G) v of DINT, [B, M, H, Dv] (packed [total, H, Dv]), before
/// the head norm, with gradients. Every row of that map sums to 1.
///
/// G is the average of the rows of P1. Row t of a causal map averages the rows up to itself,
/// G_t = (1 / t) sum_{m <= t} P1[m]; otherwise G averages all rows (as published). G_t v is the
/// mean of the rows of P1 v, so no map is stored and the memory is O(N). Rows of padding tokens do
/// not count. A window restricts P1 and P2, but G still averages over all earlier rows.
///
/// With a cache (causal maps only), slot 2 holds the running sums of P1 v in float32, one row per
/// token so that the cache can be rewound. `heads` are then the newest tokens against all keys.
torch::Tensor dint_heads(Route route, const HeadTensors& heads, KvCache* cache = nullptr);

/// DINT: V1 plus the averaged map, with the parameters of V1. `options.causal` chooses between the
/// running and the full average. Traces hold the map without G.
class DintAttentionImpl : public MultiheadDiffAttentionImpl {
 public:
  /// Throws for kinds other than V1 and for cross-attention.
  explicit DintAttentionImpl(const MultiheadDiffAttentionOptions& options);

  using MultiheadDiffAttentionImpl::forward;
  torch::Tensor forward(const AttentionInput& input, AttentionTrace* trace = nullptr) override;
};
TORCH_MODULE(DintAttention);

}  // namespace diffattn::nn
