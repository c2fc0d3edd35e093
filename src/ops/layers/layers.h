// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

/// Parts that the fused operators around attention share.
namespace diffattn::ops {

/// Largest number of rows for which our matrix product is faster than torch's: reading the matrix
/// then limits the time.
inline constexpr int64_t kFewRows = 4;

/// Throws if autograd wants a second derivative: the kernels leave no graph for it.
inline void refuse_second_derivative(const char* name) {
  TORCH_CHECK(!torch::GradMode::is_enabled(), name,
              ": the fused operator has no second derivative; use float64");
}

}  // namespace diffattn::ops
