// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

namespace diffattn::ops {

/// Returns matrices of one width below each other: a view if they already lie so in one memory
/// block, else a copy. Call it without gradients.
inline torch::Tensor joined_rows(at::TensorList matrices) {
  int64_t rows = 0;
  bool adjacent = true;
  const torch::Tensor& first = matrices.front();
  for (const torch::Tensor& matrix : matrices) {
    adjacent = adjacent && matrix.is_contiguous() && matrix.is_alias_of(first) &&
               matrix.storage_offset() == first.storage_offset() + rows * first.size(1);
    rows += matrix.size(0);
  }
  if (!adjacent) return torch::cat(matrices);
  return first.as_strided({rows, first.size(1)}, {first.size(1), 1}, first.storage_offset());
}

}  // namespace diffattn::ops
