// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

namespace diffattn {

/// A sum and its norm.
struct NormedSum {
  torch::Tensor sum;   // in the type of x
  torch::Tensor norm;  // in the type asked for
};

/// True if a kernel computes `add_rms_norm` in one pass: on a GPU, with a float32 weight, and with
/// one type for x, branch and norm, or x in float32 and the others in bfloat16.
bool takes_add_rms_norm(const torch::Tensor& x, const torch::Tensor& branch,
                        const torch::Tensor& weight, torch::ScalarType type);

/// Returns h = x + branch, rounded to the type of x, and weight h / sqrt(mean(h^2) + eps), rounded
/// once to `type`, with gradients. x and branch [..., width], weight [width]. Without a branch
/// (undefined) the sum is x. The arguments must satisfy `takes_add_rms_norm`.
NormedSum add_rms_norm(const torch::Tensor& x, const torch::Tensor& branch,
                       const torch::Tensor& weight, double eps, torch::ScalarType type);

}  // namespace diffattn
