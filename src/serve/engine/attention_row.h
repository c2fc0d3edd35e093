// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "diffattn/nn/decoder.h"
#include "serve/backend.h"

namespace diffattn::serve {

/// Computes where the last of the tokens looks, in the model's last layer.
AttentionRow attention_of_last(nn::CausalLM& model, const std::vector<int64_t>& tokens);

}  // namespace diffattn::serve
