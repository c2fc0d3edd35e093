// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "diffattn/kernels/params.h"
#include "ops/glue/arguments.h"

/// Arguments of operators as parameters of kernels.
namespace diffattn::ops {

/// Index tensors as int32 on the host, checked: no value that int32 cannot hold.
Tensor host_index(const char* name, const Tensor& index);

/// Fills the parts of kernel parameters that all operators share. Keeps what it had to convert
/// (small index arrays, lambda in another type) alive.
class ProblemViews {
 public:
  /// A tensor in the accumulator type of the problem, kept alive; null for none.
  const void* accumulator_data(const OptionalTensor& tensor);

  /// Where attention's values and epilogue come from.
  Epilogue epilogue(const AttentionArguments& arguments);

 protected:
  ProblemViews(const ProblemArguments& arguments, Problem& problem);
  const int32_t* keep_index(const Tensor& index);

  torch::ScalarType accumulator_;
  std::vector<Tensor> kept_;
};

/// Index arrays are host memory; their values are checked.
class HostProblem : public ProblemViews {
 public:
  HostProblem(const ProblemArguments& arguments, Problem& problem);

 private:
  void set_packed_sizes(const ProblemArguments& arguments, Problem& problem);
};

/// Index arrays are device memory. Nothing waits for the device, so their values are not looked at,
/// and packed sequences are taken to be as long as all of them together.
class DeviceProblem : public ProblemViews {
 public:
  DeviceProblem(const ProblemArguments& arguments, Problem& problem);
};

}  // namespace diffattn::ops
