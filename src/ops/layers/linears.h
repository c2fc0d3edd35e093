// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <initializer_list>
#include <vector>

#include "ops/layers/token_layer.h"

namespace diffattn {

/// Returns linear(x, weight, bias) of each map. For a few rows on the CPU, threads share the
/// reading of all weights, so that they start and wait once instead of once per map.
std::vector<torch::Tensor> linears(const torch::Tensor& x, std::initializer_list<LinearMap> maps);

}  // namespace diffattn
