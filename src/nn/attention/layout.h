// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/nn/attention_options.h"

namespace diffattn::nn {

/// Slots of a KvCache.
inline constexpr size_t kKeySlot = 0, kValueSlot = 1;

/// The tensors of map 1 and map 2; they may be the same.
struct Pair {
  torch::Tensor first, second;
};

/// Splits q [..., query_heads, D] into q1, q2 [..., H, D]; grouped: q2 [..., noise heads, D].
Pair split_queries(const torch::Tensor& q, const MultiheadDiffAttentionOptions& options);

/// Splits k [..., key_heads, D] into views k1, k2 [..., Hkv, D] (legacy pairing: copies [..., H,
/// D]).
Pair split_keys(const torch::Tensor& k, const MultiheadDiffAttentionOptions& options,
                const AttentionSizes& sizes);

/// Converts the result of the v projection, [..., Hkv Dv], to [..., Hkv, Dv].
torch::Tensor join_values(const torch::Tensor& v, const MultiheadDiffAttentionOptions& options,
                          const AttentionSizes& sizes);

/// Returns v [..., Hkv, Dv] with as many heads as the keys of `split_keys` (legacy pairing: repeats
/// each head).
torch::Tensor share_values(const torch::Tensor& v, const MultiheadDiffAttentionOptions& options,
                           const AttentionSizes& sizes);

}  // namespace diffattn::nn
