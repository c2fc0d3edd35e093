// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

/// The masks of a call in the form of torch's scaled_dot_product_attention.
struct SdpaMask {
  /// Torch's causal rule: row m sees n <= m. It is ours only if M = N.
  bool is_causal = false;
  /// [B or 1, H or 1, M, N]: boolean, or additive in the type of q. Undefined: all columns visible.
  torch::Tensor mask = {};
  /// [B or 1, H or 1, M, 1]: rows that see no column. In `mask` they see all columns, which avoids
  /// NaN; the caller must set their results to 0. Undefined: no such row.
  torch::Tensor sees_none = {};

  /// Returns the masks for `count` copies of the heads, as (all heads, all heads, ...) or as
  /// (head 0, head 0, ..., head 1, ...).
  SdpaMask repeated(int64_t count) const;
  SdpaMask interleaved(int64_t count) const;
};

/// Returns the masks of tensors that are not packed. `torch_causal` allows is_causal instead of a
/// mask.
SdpaMask sdpa_mask(const HeadTensors& heads, bool torch_causal = true);

/// Returns an index tensor [B] as int64 [B, 1, 1, 1], to compare with rows and columns.
torch::Tensor per_batch(const torch::Tensor& index);

/// Returns sequence b of packed tensors as a batch of one. Offsets are int64 on the host.
HeadTensors sequence(const HeadTensors& heads, const torch::Tensor& offsets_q,
                     const torch::Tensor& offsets_k, int64_t b);

}  // namespace diffattn::nn
