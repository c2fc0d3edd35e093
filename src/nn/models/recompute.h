// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <functional>

namespace diffattn::nn {

/// run(x), keeping only x for the backward pass, which calls `run` a second time. Gradients of
/// parameters that `run` uses are added to them there. `run` must give the same result both times.
torch::Tensor recomputed(const std::function<torch::Tensor(const torch::Tensor&)>& run,
                         const torch::Tensor& x);

}  // namespace diffattn::nn
