// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

namespace diffattn::ops {

/// Raw loops leave no graph for a second derivative.
inline void refuse_second_derivative(const char* name) {
  TORCH_CHECK(!torch::GradMode::is_enabled(), name,
              ": there are no second derivatives of the fused operator; float64 has them");
}

}  // namespace diffattn::ops
