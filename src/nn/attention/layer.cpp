// SPDX-License-Identifier: Apache-2.0
#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

int64_t AttentionLayer::parameter_count() const {
  int64_t count = 0;
  for (const torch::Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

}  // namespace diffattn::nn
