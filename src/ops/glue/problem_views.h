// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "diffattn/kernels/params.h"
#include "ops/glue/arguments.h"

/// Conversion of operator arguments to kernel parameters.
namespace diffattn::ops {

/// Returns an index tensor as int32 on the host. Throws `Error` if a value is negative or does not
/// fit.
Tensor host_index(const char* name, const Tensor& index);

/// Sets the dtype and sizes of a problem, except value_dim. Reads and converts no data. For packed
/// tensors seq_q and seq_k are upper bounds on the longest sequence.
void set_sizes(const ProblemArguments& arguments, Problem& problem);

/// Returns the same call with a contiguous copy of the paged k1, k2 and v.
AttentionArguments without_pages(const AttentionArguments& arguments);

/// Fills the fields of kernel parameters that all operators share. Owns the tensors that it has to
/// convert (index arrays, lambda of another type), so it must outlive the kernel call.
class ProblemViews {
 public:
  /// Returns the data of a tensor, converted to the accumulator type; null without a tensor.
  const void* accumulator_data(const OptionalTensor& tensor);

  /// Returns the epilogue of attention.
  Epilogue epilogue(const AttentionArguments& arguments);

 protected:
  ProblemViews(const ProblemArguments& arguments, Problem& problem);
  const int32_t* own_index(const Tensor& index);

  torch::ScalarType accumulator_;
  std::vector<Tensor> owned_;
};

/// Index arrays are host memory. Checks their values.
class HostProblem : public ProblemViews {
 public:
  HostProblem(const ProblemArguments& arguments, Problem& problem);

 private:
  void set_packed_sizes(const ProblemArguments& arguments, Problem& problem);
  void set_pages(const ProblemArguments& arguments, Problem& problem);
};

/// Index arrays are device memory. Their values stay unread, since reading them would wait for the
/// device. seq_q and seq_k of packed tensors are therefore upper bounds.
class DeviceProblem : public ProblemViews {
 public:
  DeviceProblem(const ProblemArguments& arguments, Problem& problem);
};

}  // namespace diffattn::ops
