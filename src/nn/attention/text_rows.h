// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>

#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

/// Returns which rows of a call are text and not padding, [B, M] bool; none if no padding is known.
/// `row_lengths` [B]: number of rows of each sequence that are not padding. Without it, a call with
/// as many rows as columns counts as self-attention, and `key_starts` and `key_lengths` mark its
/// padding rows too.
std::optional<torch::Tensor> text_rows(const HeadTensors& call,
                                       const std::optional<torch::Tensor>& row_lengths = {});

}  // namespace diffattn::nn
