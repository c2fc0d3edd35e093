// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <optional>

#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

/// Rows of a call that are tokens of its texts, [B, M] bool; nothing where no row is known to be
/// padding. `row_lengths` [B]: how many rows of each sequence are no padding. Without it, calls
/// with as many rows as columns are taken for self-attention, whose rows are padding where
/// `key_starts` and `key_lengths` say that the columns are.
std::optional<torch::Tensor> text_rows(const HeadTensors& call,
                                       const std::optional<torch::Tensor>& row_lengths = {});

}  // namespace diffattn::nn
