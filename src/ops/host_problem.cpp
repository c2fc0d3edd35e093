// SPDX-License-Identifier: Apache-2.0
#include "ops/host_problem.h"

#include <algorithm>
#include <limits>
#include <string>

#include "diffattn/kernels/error.h"
#include "ops/view_of.h"

namespace diffattn::ops {

Tensor host_index(const char* name, const Tensor& index) {
  const Tensor wide = index.to(torch::kCPU, torch::kLong).contiguous();
  const int64_t* data = wide.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < wide.numel(); ++i) {
    if (data[i] < 0 || data[i] > std::numeric_limits<int32_t>::max()) {
      throw_argument_error(name, "values within [0, 2^31)",
                           std::to_string(data[i]) + " at index " + std::to_string(i));
    }
  }
  return wide.to(torch::kInt);
}

int64_t longest_sequence(const char* name, const Tensor& offsets, int64_t total) {
  const int32_t* data = offsets.const_data_ptr<int32_t>();
  const int64_t last = offsets.numel() - 1;
  int64_t longest = 0;
  for (int64_t i = 0; i < last; ++i) longest = std::max<int64_t>(longest, data[i + 1] - data[i]);
  if (data[last] != total) {
    throw_argument_error(name, "a last offset equal to the rows there are, " +
                                   std::to_string(total),
                         std::to_string(data[last]));
  }
  return longest;
}

HostProblem::HostProblem(const ProblemArguments& a, Problem& problem)
    : accumulator_(accumulator_type(a.q1.scalar_type())) {
  problem.dtype = dtype_of(a.q1);
  problem.heads = a.q1.size(-2);
  problem.kv_heads = a.k1.size(-2);
  problem.head_dim = a.q1.size(-1);
  problem.cu_seqlens_q = index_data("cu_seqlens_q", a.cu_seqlens_q);
  problem.cu_seqlens_k = index_data("cu_seqlens_k", a.cu_seqlens_k);
  if (a.packed()) {
    set_packed_sizes(a, problem);
  } else {
    problem.batch = a.q1.size(0);
    problem.seq_q = a.q1.size(1);
    problem.seq_k = a.k1.size(1);
  }
  problem.key_starts = index_data("key_starts", a.key_starts);
  problem.key_lengths = index_data("key_lengths", a.key_lengths);
  problem.align_to_key_lengths = a.align_to_key_lengths;

  problem.q1 = view_of(a.q1);
  problem.q2 = view_of(a.q2);
  problem.k1 = view_of(a.k1);
  problem.k2 = view_of(a.k2);
  const Tensor lambda = a.lambda.to(accumulator_);
  kept_.push_back(lambda);
  problem.lambda = lambda_view(lambda.const_data_ptr(), lambda, problem.heads);
  problem.mask = mask_of(a.mask);
  problem.scale = a.scale_or_default();
  problem.scale2 = a.scale2_or_default();
  problem.causal = a.causal;
  problem.window = a.window.value_or(kNoWindow);
}

const void* HostProblem::accumulator_data(const OptionalTensor& tensor) {
  if (!tensor) return nullptr;
  kept_.push_back(tensor->to(accumulator_).contiguous());
  return kept_.back().const_data_ptr();
}

const int32_t* HostProblem::index_data(const char* name, const OptionalTensor& index) {
  if (!index) return nullptr;
  kept_.push_back(host_index(name, *index));
  return kept_.back().const_data_ptr<int32_t>();
}

void HostProblem::set_packed_sizes(const ProblemArguments& a, Problem& problem) {
  problem.batch = a.cu_seqlens_q->numel() - 1;
  problem.seq_q = longest_sequence("cu_seqlens_q", kept_[0], a.q1.size(0));
  problem.seq_k = longest_sequence("cu_seqlens_k", kept_[1], a.k1.size(0));
  if (!a.mask) return;
  const auto check_axis = [&](int64_t axis, int64_t longest, const char* name) {
    const int64_t size = a.mask->dim() < -axis ? 1 : a.mask->size(axis);
    if (size == 1 || size >= longest) return;
    throw_argument_error("mask",
                         std::string(name) + " of size 1 or at least the longest sequence, " +
                             std::to_string(longest),
                         std::to_string(size));
  };
  check_axis(-2, problem.seq_q, "a row axis");
  check_axis(-1, problem.seq_k, "a column axis");
}

}  // namespace diffattn::ops
