// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/glue/entry.h"

namespace diffattn::ops {

/// The fused CUDA kernels behind the operators: pointers, so that a build without nvcc has none.
struct CudaFused {
  /// The kernels of one GPU generation and the portable ones, as limits and `info` call them.
  static constexpr const char* kSm90 = "sm90";
  static constexpr const char* kPortable = "mma";

  bool (*has_sm90)();  // is the current device of that generation?
  /// Which of the two would compute a forward on dense tensors like these, given the limit.
  const char* (*name)(const ProblemArguments& arguments, int64_t value_dim);
  /// Is there a kernel for these tensors on their device? `value_dim` of v.
  bool (*takes)(const ProblemArguments& arguments, int64_t value_dim);
  ForwardResult (*forward)(const AttentionArguments& arguments, bool save_outputs);
  /// Is there a kernel for this forward that does less once lse1 and lse2 are known?
  bool (*takes_recompute)(const AttentionArguments& arguments);
  RecomputeResult (*recompute)(const AttentionArguments& arguments, const Tensor& lse1,
                               const Tensor& lse2);
  BackwardResult (*backward)(const Tensor& dout, const AttentionArguments& arguments,
                             const Saved& saved, const Wanted& wanted);
  Tensor (*stats)(const ProblemArguments& arguments, double sparse_threshold);
  BackwardResult (*stats_backward)(const Tensor& dstats, const ProblemArguments& arguments,
                                   const StatsWanted& wanted);
  Tensor (*map)(const ProblemArguments& arguments, const MapGrid& grid);
};

/// Null in a build without CUDA kernels.
const CudaFused* cuda_fused();

/// Would the fused kernels compute this, given the limit in force? `value_dim` of v; the operators
/// that have no v leave it out.
bool cuda_fused_takes(const ProblemArguments& arguments, int64_t value_dim = 1);

}  // namespace diffattn::ops
