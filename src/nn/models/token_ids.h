// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

namespace diffattn::nn {

/// Throws diffattn::Error unless `ids` are integers [N] or [B, N] on the device of `embedding`
/// [V, E] and lie in [0, V). Ids on a GPU are not compared with V, since that would wait for the
/// device.
void check_token_ids(const torch::Tensor& ids, const torch::Tensor& embedding);

/// Throws diffattn::Error unless `hidden` is a floating-point tensor [..., E] for the weight
/// [V, E] of a language-model head.
void check_hidden_states(const torch::Tensor& hidden, const torch::Tensor& head_weight);

}  // namespace diffattn::nn
