// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/entry.h"

namespace diffattn::ops {

/// The fused CUDA kernels behind the operators: pointers, so that a build without nvcc has none.
struct CudaFused {
  const char* name;
  const char* description;
  /// Is there a kernel for these tensors on their device? `value_dim` of v.
  bool (*takes)(const ProblemArguments& arguments, int64_t value_dim);
  ForwardResult (*forward)(const AttentionArguments& arguments, bool save_outputs);
  BackwardResult (*backward)(const Tensor& dout, const AttentionArguments& arguments,
                             const Saved& saved, const Wanted& wanted);
};

/// Null in a build without CUDA kernels.
const CudaFused* cuda_fused();

/// Would the fused kernels compute this, given the limit in force?
bool cuda_fused_takes(const ProblemArguments& arguments, int64_t value_dim);

}  // namespace diffattn::ops
