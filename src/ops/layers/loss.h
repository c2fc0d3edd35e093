// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

namespace diffattn {

/// Options of `cross_entropy_to_gradient_`.
struct CrossEntropyRows {
  int64_t ignore_index = -100;
  double label_smoothing = 0.0, z_loss = 0.0;
  double factor = 1.0;  // multiplies the gradient
};

/// Returns the cross-entropy of logits [T, V] (float32, host memory, contiguous) with labels [T]
/// (int64 in [0, V), or ignore_index), summed over rows. Overwrites the logits with `factor` times
/// the gradient with respect to them. Ignored rows have loss and gradient 0. Throws diffattn::Error
/// for a label out of range.
double cross_entropy_to_gradient_(torch::Tensor& logits, const torch::Tensor& labels,
                                  const CrossEntropyRows& options);

}  // namespace diffattn
