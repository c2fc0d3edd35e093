// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "diffattn/nn/attention_layer.h"
#include "diffattn/nn/rotary.h"

namespace diffattn::nn {

/// Returns the sizes of a tensor for an error message: "shape [2, 3]".
std::string shape(const torch::Tensor& tensor);

/// Returns the rotary angles of the rows of `input.x`: `input.angles` if given, else the angles of
/// `input.positions`, of the positions within packed sequences, or of those after the cache.
/// Throws diffattn::Error if given angles or positions do not fit the tokens of x.
RotaryTable rotary_table(RotaryImpl& rotary, const AttentionInput& input);

/// Returns the masks as options of `attention`. A layer's `causal` and `window` apply unless `mask`
/// sets them. Throws for a window without causal.
AttentionOptions mask_options(const AttentionMask& mask, bool causal,
                              std::optional<int64_t> window);

/// Returns the masks for keys of which a cache has dropped the oldest `dropped`.
AttentionMask in_view(const AttentionMask& mask, int64_t dropped);

}  // namespace diffattn::nn
