// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "diffattn/kernels/params.h"
#include "ops/arguments.h"

namespace diffattn::ops {

/// Index tensors as int32 on the host, checked: no value that int32 cannot hold.
Tensor host_index(const char* name, const Tensor& index);

/// Length of the longest sequence between offsets; checks that the last one is `total`.
int64_t longest_sequence(const char* name, const Tensor& offsets, int64_t total);

/// Fills the parts of kernel parameters that all operators share, for tensors in host memory. Keeps
/// what it had to convert (small index arrays, lambda in another type) alive.
class HostProblem {
 public:
  HostProblem(const ProblemArguments& arguments, Problem& problem);

  /// A tensor in the accumulator type of the problem, kept alive; null for none.
  const void* accumulator_data(const OptionalTensor& tensor);

 private:
  const int32_t* index_data(const char* name, const OptionalTensor& index);
  void set_packed_sizes(const ProblemArguments& arguments, Problem& problem);

  torch::ScalarType accumulator_;
  std::vector<Tensor> kept_;
};

}  // namespace diffattn::ops
