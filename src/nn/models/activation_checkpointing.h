// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <functional>

#include "ops/dispatch/attention_checkpoint.h"

namespace diffattn::nn {

/// run(x, context), keeping only these two and, of its attention calls, what `keep` says for the
/// backward pass, which calls `run` a second time. `context` may be undefined. Gradients of
/// parameters that `run` uses are added to them there. `run` must give the same result both times.
torch::Tensor recomputed(
    const std::function<torch::Tensor(const torch::Tensor& x, const torch::Tensor& context)>& run,
    const torch::Tensor& x, const torch::Tensor& context, KeepAttention keep);

}  // namespace diffattn::nn
