// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

namespace diffattn {

/// The parameters of a layer's lambda, [D] each.
struct LambdaVectors {
  torch::Tensor q1, k1, q2, k2;
};

/// True if one kernel computes `lambda_of_vectors`: in float32 on a GPU.
bool takes_lambda_vectors(const LambdaVectors& vectors);

/// Returns exp(q1 . k1) - exp(q2 . k2) + init as a scalar, with gradients. The vectors must satisfy
/// `takes_lambda_vectors`.
torch::Tensor lambda_of_vectors(const LambdaVectors& vectors, double init);

}  // namespace diffattn
