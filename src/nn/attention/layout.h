// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/nn/attention_options.h"

namespace diffattn::nn {

/// Of a KvCache.
inline constexpr size_t kKeySlot = 0, kValueSlot = 1;

/// Tensors of the two maps; for one tensor per head the two are the same.
struct Pair {
  torch::Tensor first, second;
};

/// q [..., query_heads, D] -> q1, q2 [..., H, D].
Pair split_queries(const torch::Tensor& q, const MultiheadDiffAttentionOptions& options);

/// k [..., key_heads, D] -> k1, k2 [..., Hkv, D], views (legacy pairing: copies [..., H, D]).
Pair split_keys(const torch::Tensor& k, const MultiheadDiffAttentionOptions& options,
                const AttentionSizes& sizes);

/// What the v projection gives, [..., Hkv Dv] -> [..., Hkv, Dv].
torch::Tensor join_values(const torch::Tensor& v, const MultiheadDiffAttentionOptions& options,
                          const AttentionSizes& sizes);

/// v [..., Hkv, Dv] as the operation wants it beside `split_keys` (legacy pairing: repeated).
torch::Tensor share_values(const torch::Tensor& v, const MultiheadDiffAttentionOptions& options,
                           const AttentionSizes& sizes);

}  // namespace diffattn::nn
