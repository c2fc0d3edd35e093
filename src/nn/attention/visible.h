// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

/// Who may see whom, in the terms of torch's scaled_dot_product_attention.
struct SdpaMask {
  /// Torch's own rule: row m sees n <= m, which is ours only when M = N.
  bool is_causal = false;
  /// [B or 1, H or 1, M, N]: boolean, or additive in the heads' type. Undefined: everything.
  torch::Tensor mask = {};
  /// [B or 1, H or 1, M, 1]: rows that may see nothing. In `mask` they see everything, so that no
  /// NaN arises; their results must be set to 0. Undefined: no such row.
  torch::Tensor sees_none = {};

  /// The same for `count` copies of the heads, one after another or each beside its own.
  SdpaMask repeated(int64_t count) const;
  SdpaMask interleaved(int64_t count) const;
};

/// Of tensors that are not packed. `torch_causal`: whether is_causal may be used in place of a
/// mask.
SdpaMask sdpa_mask(const HeadTensors& heads, bool torch_causal = true);

/// Sequence b of packed tensors as a batch of one. Offsets are int64 on the host.
HeadTensors sequence(const HeadTensors& heads, const torch::Tensor& offsets_q,
                     const torch::Tensor& offsets_k, int64_t b);

}  // namespace diffattn::nn
