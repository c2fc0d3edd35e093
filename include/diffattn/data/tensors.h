// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <vector>

#include "diffattn/data/examples.h"
#include "diffattn/data/packed_rows.h"

// Batches as tensors. Everything else of this layer knows no torch.

namespace diffattn::data {

/// A RowBatch as packed sequences, the form that attention with cu_seqlens takes.
struct PackedTensors {
  torch::Tensor ids;         // [total] int64: one row after the other
  torch::Tensor labels;      // [total] int64
  torch::Tensor positions;   // [total] int64
  torch::Tensor cu_seqlens;  // [segments + 1] int32
  std::int64_t max_segment = 0;
};

/// A tensor with a copy of values.
inline torch::Tensor to_tensor(const std::vector<std::int64_t>& values) {
  return torch::tensor(values, torch::kInt64);
}

inline PackedTensors to_tensors(const RowBatch& batch) {
  return {to_tensor(batch.ids), to_tensor(batch.labels), to_tensor(batch.positions),
          torch::tensor(batch.cu_seqlens, torch::kInt32), batch.max_segment};
}

struct PaddedTensors {
  torch::Tensor ids;      // [rows, length] int64
  torch::Tensor lengths;  // [rows] int64
};

inline PaddedTensors to_tensors(const PaddedBatch& batch) {
  return {to_tensor(batch.ids).view({batch.rows, batch.length}), to_tensor(batch.lengths)};
}

}  // namespace diffattn::data
