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

/// True if a GPU kernel computes `cross_entropy_rows_` for logits [T, classes] of the type of
/// `hidden`, on its device.
bool takes_cross_entropy_rows(const torch::Tensor& hidden, int64_t classes);

/// Returns the cross-entropy [T] (float32) of each row of logits [T, V] on a GPU (contiguous, fresh
/// memory). With `factor` (float32 scalar on the GPU) it overwrites the logits with options.factor
/// times `factor` times the gradient; undefined leaves them. The host does not wait. A label out of
/// range makes the loss of its row NaN.
torch::Tensor cross_entropy_rows_(torch::Tensor& logits, const torch::Tensor& labels,
                                  const torch::Tensor& factor, const CrossEntropyRows& options);

}  // namespace diffattn
