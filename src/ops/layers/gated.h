// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

namespace diffattn {

/// silu(x gate^T) (x up^T) with gradients. x [..., E], gate and up [I, E]. Training in float32 on
/// the CPU makes one product of the two, forward and backward: x is read once, and its gradients
/// need not be added.
torch::Tensor gated_products(const torch::Tensor& x, const torch::Tensor& gate,
                             const torch::Tensor& up);

}  // namespace diffattn
