// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "diffattn/nn/attention_layer.h"
#include "diffattn/nn/rotary.h"

namespace diffattn::nn {

/// The angles of the rows of `input.x`: those the input brings, else of its positions, of each
/// token's place in its packed sequence, or of what follows the cache.
RotaryTable rotary_table(RotaryImpl& rotary, const AttentionInput& input);

/// Who may see whom, in the terms of the operation: `mask`, and a layer's `causal` and `window`
/// where the mask leaves them open. Throws for a window without causal.
AttentionOptions mask_options(const AttentionMask& mask, bool causal,
                              std::optional<int64_t> window);

}  // namespace diffattn::nn
