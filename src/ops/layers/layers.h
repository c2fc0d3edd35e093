// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "diffattn/error.h"
#include "ops/layers/cuda_layers.h"

/// Parts that the fused operators around attention share.
namespace diffattn::ops {

/// Largest number of rows for which our matrix product is faster than torch's: reading the matrix
/// then limits the time.
inline constexpr int64_t kFewRows = 4;

inline bool is_aligned(const torch::Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

/// True if x has elements of a type that our CUDA kernels read, on a GPU.
inline bool is_for_gpu(const torch::Tensor& x) {
  const auto type = x.scalar_type();
  return x.device().is_cuda() && cuda_layers() != nullptr && x.numel() > 0 &&
         (type == torch::kFloat32 || type == torch::kBFloat16 || type == torch::kFloat16);
}

/// True if the CUDA kernels can read all of x in 16-byte chunks.
inline bool is_whole_for_gpu(const torch::Tensor& x) {
  return is_for_gpu(x) && x.is_contiguous() && x.numel() % 8 == 0 && is_aligned(x);
}

/// Throws if autograd wants a second derivative: the kernels leave no graph for it.
inline void refuse_second_derivative(const char* name) {
  if (!torch::GradMode::is_enabled()) return;
  throw Error(
      c10::str("diffattn: ", name, ": the fused operator has no second derivative; use float64"));
}

}  // namespace diffattn::ops
