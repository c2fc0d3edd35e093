// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <functional>

#include "diffattn/ops.h"
#include "nn/parts/residual_stream.h"

namespace diffattn::nn {

/// Calls run(stream, context) under activation checkpointing: it saves only the stream, the context
/// and, of the attention calls in `run`, the tensors that `keep` asks for. The backward pass calls
/// `run` a second time and adds the gradients of the parameters that it uses. `context` may be
/// undefined. `run` must do the same both times.
void run_checkpointed(
    const std::function<void(ResidualStream& stream, const torch::Tensor& context)>& run,
    ResidualStream& stream, const torch::Tensor& context, KeepAttention keep);

}  // namespace diffattn::nn
