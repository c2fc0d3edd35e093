// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

namespace diffattn {

/// Returns silu(x gate^T) (x up^T), with gradients. x [..., E], gate and up [I, E]. Training
/// in float32 on the CPU, and in one type on a GPU, computes both products as one, forward and
/// backward: it reads x once and needs no sum of two gradients.
torch::Tensor gated_products(const torch::Tensor& x, const torch::Tensor& gate,
                             const torch::Tensor& up);

}  // namespace diffattn
