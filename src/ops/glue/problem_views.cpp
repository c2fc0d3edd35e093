// SPDX-License-Identifier: Apache-2.0
#include "ops/glue/problem_views.h"

#include <algorithm>
#include <limits>
#include <string>

#include "diffattn/kernels/error.h"
#include "ops/glue/view_of.h"

namespace diffattn::ops {
namespace {

/// Returns the length of the longest sequence. Throws unless the last offset is `total`.
int64_t longest_sequence(const char* name, const int32_t* offsets, int64_t batch, int64_t total) {
  int64_t longest = 0;
  for (int64_t b = 0; b < batch; ++b) {
    longest = std::max<int64_t>(longest, int64_t{offsets[b + 1]} - offsets[b]);
  }
  if (offsets[batch] != total) {
    throw_argument_error(name,
                         "a last offset equal to the number of rows, " + std::to_string(total),
                         std::to_string(offsets[batch]));
  }
  return longest;
}

/// Returns an upper bound on the longest sequence: all rows together, or the mask's axis for them.
int64_t longest_possible(int64_t total, const OptionalTensor& mask, int64_t axis) {
  if (!mask || mask->dim() < -axis || mask->size(axis) == 1) return total;
  return std::min(total, mask->size(axis));
}

}  // namespace

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

void set_sizes(const ProblemArguments& a, Problem& problem) {
  problem.dtype = dtype_of(a.q1);
  problem.heads = a.q1.size(-2);
  problem.kv_heads = a.k1.size(-2);
  problem.noise_heads = a.q2.size(-2);
  problem.head_dim = a.q1.size(-1);
  problem.batch = a.packed() ? a.cu_seqlens_q->numel() - 1 : a.q1.size(0);
  problem.seq_q = a.packed() ? longest_possible(a.q1.size(0), a.mask, -2) : a.q1.size(1);
  problem.seq_k = a.packed()  ? longest_possible(a.k1.size(0), a.mask, -1)
                  : a.paged() ? a.block_table->size(1) * a.k1.size(1)
                              : a.k1.size(1);
  if (a.packed()) {
    problem.total_q = a.q1.size(0);
    problem.total_k = a.k1.size(0);
  }
}

ProblemViews::ProblemViews(const ProblemArguments& a, Problem& problem)
    : accumulator_(accumulator_type(a.q1.scalar_type())) {
  set_sizes(a, problem);
  problem.align_to_key_lengths = a.align_to_key_lengths;
  problem.q1 = view_of(a.q1);
  problem.q2 = view_of(a.q2);
  problem.k1 = view_of(a.k1);
  problem.k2 = view_of(a.k2);
  const Tensor lambda = a.lambda.to(accumulator_);
  owned_.push_back(lambda);
  problem.lambda = lambda_view(lambda.const_data_ptr(), lambda, problem.heads);
  problem.mask = mask_of(a.mask);
  problem.scale = a.scale_or_default();
  problem.scale2 = a.scale2_or_default();
  problem.causal = a.causal;
  problem.window = a.window_bounds();
}

const void* ProblemViews::accumulator_data(const OptionalTensor& tensor) {
  if (!tensor) return nullptr;
  owned_.push_back(tensor->to(accumulator_).contiguous());
  return owned_.back().const_data_ptr();
}

Epilogue ProblemViews::epilogue(const AttentionArguments& a) {
  return {.norm = a.norm_eps.has_value(),
          .norm_eps = a.norm_eps.value_or(0.0),
          .norm_weight = accumulator_data(a.norm_weight),
          .out_scale = a.out_scale};
}

const int32_t* ProblemViews::own_index(const Tensor& index) {
  owned_.push_back(index);
  return index.const_data_ptr<int32_t>();
}

HostProblem::HostProblem(const ProblemArguments& a, Problem& problem) : ProblemViews(a, problem) {
  const auto index = [&](const char* name, const OptionalTensor& tensor) -> const int32_t* {
    return tensor ? own_index(host_index(name, *tensor)) : nullptr;
  };
  problem.cu_seqlens_q = index("cu_seqlens_q", a.cu_seqlens_q);
  problem.cu_seqlens_k = index("cu_seqlens_k", a.cu_seqlens_k);
  if (a.packed()) set_packed_sizes(a, problem);
  problem.key_starts = index("key_starts", a.key_starts);
  problem.key_lengths = index("key_lengths", a.key_lengths);
  if (a.paged()) set_pages(a, problem);
}

/// Entries behind the last key of a sequence may be anything. Throws if another one is no page.
void HostProblem::set_pages(const ProblemArguments& a, Problem& problem) {
  const Tensor table = a.block_table->to(torch::kLong).contiguous();
  const int64_t columns = table.size(1), size = a.k1.size(1), pages = a.k1.size(0);
  Tensor used = torch::zeros({problem.batch, columns}, torch::kInt);
  for (int64_t b = 0; b < problem.batch; ++b) {
    const int64_t count = std::min<int64_t>(columns, (problem.key_lengths[b] + size - 1) / size);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t page = table.const_data_ptr<int64_t>()[b * columns + i];
      if (page < 0 || page >= pages) {
        throw_argument_error(
            "block_table", "pages in [0, " + std::to_string(pages) + ")",
            std::to_string(page) + " at [" + std::to_string(b) + ", " + std::to_string(i) + "]");
      }
      used.mutable_data_ptr<int32_t>()[b * columns + i] = static_cast<int32_t>(page);
    }
  }
  problem.pages = {own_index(used), columns, size};
}

void HostProblem::set_packed_sizes(const ProblemArguments& a, Problem& problem) {
  problem.seq_q =
      longest_sequence("cu_seqlens_q", problem.cu_seqlens_q, problem.batch, a.q1.size(0));
  problem.seq_k =
      longest_sequence("cu_seqlens_k", problem.cu_seqlens_k, problem.batch, a.k1.size(0));
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

DeviceProblem::DeviceProblem(const ProblemArguments& a, Problem& problem)
    : ProblemViews(a, problem) {
  const auto index = [&](const OptionalTensor& tensor) -> const int32_t* {
    return tensor ? own_index(tensor->to(torch::kInt).contiguous()) : nullptr;
  };
  problem.cu_seqlens_q = index(a.cu_seqlens_q);
  problem.cu_seqlens_k = index(a.cu_seqlens_k);
  problem.key_starts = index(a.key_starts);
  problem.key_lengths = index(a.key_lengths);
  if (a.paged()) problem.pages = {index(a.block_table), a.block_table->size(1), a.k1.size(1)};
}

AttentionArguments without_pages(const AttentionArguments& a) {
  const Tensor table = a.block_table->to(torch::kLong).clamp(0, a.k1.size(0) - 1);
  const auto rows = [&](const Tensor& pool) {  // [B, P page size, Hkv, D]
    return pool.index_select(0, table.flatten()).unflatten(0, table.sizes()).flatten(1, 2);
  };
  AttentionArguments whole = a;
  whole.k1 = rows(a.k1);
  whole.k2 = a.k2.is_same(a.k1) ? whole.k1 : rows(a.k2);
  whole.v = rows(a.v);
  whole.block_table.reset();
  return whole;
}

}  // namespace diffattn::ops
