// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "diffattn/kernels/view.h"

namespace diffattn::cuda {

/// A parameter of an optimiser step. All pointers are device memory; moments and parameter are
/// float32.
struct AdamWTensor {
  float* parameter;
  float* exp_avg;
  float* exp_avg_sq;
  float* step;           // [1]: the number of updates so far
  const void* gradient;  // null: the parameter keeps its value
  void* copy;            // bfloat16 copy of the parameter; null: none
  int64_t count;
  float weight_decay;
  uint8_t wide_gradient;  // 1: the gradient is float32, 0: bfloat16
  uint8_t vectors;        // 1: every pointer is 16-byte aligned
};

/// Elements [part * kAdamWChunk, (part + 1) * kAdamWChunk) of a tensor: the work of a thread block.
struct AdamWChunk {
  int32_t tensor, part;
};
inline constexpr int64_t kAdamWChunk = 1 << 15;

/// One AdamW update of many tensors, with clipping and the guard against numbers that are not
/// finite. The host need not know the norm: if `loss` or the norm is not finite, no tensor changes.
struct AdamWStep {
  const AdamWTensor* tensors = nullptr;  // device memory
  const AdamWChunk* chunks = nullptr;    // device memory
  float* partial = nullptr;              // [chunk_count] workspace
  float* factor = nullptr;               // [1] workspace
  const double* loss = nullptr;          // [1]
  float* norm = nullptr;                 // [1]: receives the norm of all gradients before clipping
  int64_t tensor_count = 0, chunk_count = 0;
  double learning_rate = 0.0, beta1 = 0.0, beta2 = 0.0, eps = 0.0;
  double max_norm = 0.0;  // 0: no clipping
};
void adamw(const AdamWStep& params, void* stream);

}  // namespace diffattn::cuda
