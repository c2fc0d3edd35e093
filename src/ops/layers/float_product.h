// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

/// Products of float32 matrices in host memory. torch computes them with MKL, which uses vectors of
/// 256 bits on AMD processors: 110 GFLOP/s on a core of a Zen 5 that can do 250. There oneDNN,
/// which is a part of torch too, computes large products. Everywhere else these functions call
/// torch's operators.
namespace diffattn::ops {

/// Largest number of rows for which our own kernel (kernels/few_rows.h) is the fastest product;
/// `otherwise` where MKL uses the whole processor.
int64_t few_rows_limit(torch::ScalarType type, int64_t otherwise);

/// Returns a b, without a gradient, for a [M, K] and b [K, N].
torch::Tensor product(const torch::Tensor& a, const torch::Tensor& b);

/// Sets out [M, N] to a b, without a gradient.
void product_into(torch::Tensor& out, const torch::Tensor& a, const torch::Tensor& b);

/// Adds a b to sum [M, N], without a gradient.
void add_product(torch::Tensor& sum, const torch::Tensor& a, const torch::Tensor& b);

}  // namespace diffattn::ops
