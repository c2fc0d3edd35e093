// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/glue/arguments.h"

namespace diffattn::ops {

/// The fused CUDA kernels behind the operators. They are function pointers, so that a build without
/// nvcc links without them.
struct CudaFused {
  /// Names of the two kernel families in limit_backend() and `info`.
  static constexpr const char* kSm90 = "sm90";  // wgmma, sm_90 only
  static constexpr const char* kSm80 = "sm80";  // mma.sync, sm_80 and later

  bool (*has_sm90)();  // true if the current device is of capability 9.0
  /// Returns the family that would compute a forward on dense tensors like these, under the limit.
  const char* (*name)(const ProblemArguments& arguments, int64_t value_dim);
  /// True if a kernel supports the sizes and type of these tensors on their device. `value_dim` is
  /// the width of v. Looks at shapes only.
  bool (*takes)(const ProblemArguments& arguments, int64_t value_dim);
  /// True if a kernel reads the pages of this call where they are.
  bool (*takes_pages)(const AttentionArguments& arguments);
  ForwardResult (*forward)(const AttentionArguments& arguments, SavedOutputs save);
  /// True if a kernel computes this forward with less work once lse1 and lse2 are known.
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

/// Returns null in a build without CUDA kernels.
const CudaFused* cuda_fused();

/// True if the fused kernels would compute this under the limit in force. `value_dim` is the width
/// of v; operators without v leave it out.
bool cuda_fused_takes(const ProblemArguments& arguments, int64_t value_dim = 1);

}  // namespace diffattn::ops
