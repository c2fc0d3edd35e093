// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <vector>

#include "diffattn/infer/batcher.h"

namespace diffattn::infer {

/// Returns the `count` likeliest tokens by the logits [vocabulary], or all if there are fewer.
std::vector<Alternative> likeliest_tokens(const torch::Tensor& logits, int64_t count);

}  // namespace diffattn::infer
