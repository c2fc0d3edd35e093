// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <functional>

#include "diffattn/ops.h"

namespace diffattn::nn {

/// Returns run(x, context) under activation checkpointing: it saves only x, context and, of the
/// attention calls in `run`, the tensors that `keep` asks for. The backward pass calls `run` a
/// second time and adds the gradients of the parameters that it uses. `context` may be undefined.
/// `run` must return the same result both times.
torch::Tensor run_checkpointed(
    const std::function<torch::Tensor(const torch::Tensor& x, const torch::Tensor& context)>& run,
    const torch::Tensor& x, const torch::Tensor& context, KeepAttention keep);

}  // namespace diffattn::nn
