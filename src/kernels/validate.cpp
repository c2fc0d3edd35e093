// SPDX-License-Identifier: Apache-2.0
//
// Checks parameters once for all backends. An error names the field, what was expected and what
// came.

#include <cmath>
#include <string>

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/error.h"

namespace diffattn {
namespace {

void check_size(const char* name, int64_t size, int64_t at_least) {
  if (size >= at_least) return;
  throw_argument_error(name, "at least " + std::to_string(at_least), std::to_string(size));
}

void check_finite(const char* name, double value) {
  if (std::isfinite(value)) return;
  throw_argument_error(name, "a finite number", std::to_string(value));
}

void check_sizes(const Problem& problem) {
  check_size("batch", problem.batch, 0);
  check_size("heads", problem.heads, 0);
  check_size("kv_heads", problem.kv_heads, 0);
  check_size("seq_q", problem.seq_q, 0);
  check_size("seq_k", problem.seq_k, 0);
  check_size("head_dim", problem.head_dim, 1);
  check_size("value_dim", problem.value_dim, 0);
  const bool divides =
      problem.kv_heads == 0 ? problem.heads == 0 : problem.heads % problem.kv_heads == 0;
  if (!divides) {
    throw_argument_error("heads", "a multiple of kv_heads = " + std::to_string(problem.kv_heads),
                         std::to_string(problem.heads));
  }
}

/// Checks that the heads of a noise head read one kv head and see the same columns.
void check_noise_heads(const Problem& problem) {
  const int64_t noise_heads = problem.noise_heads;
  if (noise_heads == 0 || noise_heads == problem.heads) return;
  if (noise_heads < 0 || noise_heads > problem.heads || problem.heads % noise_heads != 0 ||
      noise_heads % problem.kv_heads != 0) {
    throw_argument_error("noise_heads",
                         "a divisor of heads = " + std::to_string(problem.heads) +
                             " and a multiple of kv_heads = " + std::to_string(problem.kv_heads),
                         std::to_string(noise_heads));
  }
  if (problem.mask.kind != MaskKind::kNone && problem.mask.strides.head != 0) {
    throw_argument_error("mask",
                         "one mask for all heads, since " + std::to_string(problem.noise_group()) +
                             " heads share a noise head",
                         "a mask per head");
  }
}

/// Statistics, maps and kernels of other devices need a noise head for each head.
void check_own_noise_heads(const Problem& problem) {
  if (problem.noise_group() == 1) return;
  throw_argument_error("noise_heads", "heads = " + std::to_string(problem.heads),
                       std::to_string(problem.noise_heads));
}

bool has_rows(const Problem& problem) {
  return problem.batch > 0 && problem.heads > 0 && problem.seq_q > 0;
}

void check_pointer(const char* name, bool needed, const void* data) {
  if (needed && data == nullptr) throw_argument_error(name, "a pointer", "null");
}

/// Only decoding reads pages.
void check_pages(const Problem& problem) {
  const Pages& pages = problem.pages;
  if (pages.table == nullptr) return;
  if (problem.cu_seqlens_q != nullptr || !problem.align_to_key_lengths ||
      problem.key_lengths == nullptr) {
    throw_argument_error("pages", "none, except for decoding with key_lengths", "a table");
  }
  if (pages.size < 16 || pages.size % 16 != 0) {
    throw_argument_error("pages.size", "a positive multiple of 16", std::to_string(pages.size));
  }
  if (pages.stride * pages.size < problem.seq_k) {
    throw_argument_error("pages.stride",
                         "pages for seq_k = " + std::to_string(problem.seq_k) + " rows",
                         std::to_string(pages.stride) + " pages of " + std::to_string(pages.size));
  }
}

void check_pointers(const Problem& problem) {
  const bool rows = has_rows(problem), pairs = rows && problem.seq_k > 0;
  check_pointer("q1", rows, problem.q1.data);
  check_pointer("q2", rows, problem.q2.data);
  check_pointer("k1", pairs, problem.k1.data);
  check_pointer("k2", pairs, problem.k2.data);
  check_pointer("lambda", rows, problem.lambda.data);
  check_pointer("mask", pairs && problem.mask.kind != MaskKind::kNone, problem.mask.data);
  if ((problem.cu_seqlens_q == nullptr) != (problem.cu_seqlens_k == nullptr)) {
    const bool q_given = problem.cu_seqlens_q != nullptr;
    throw_argument_error(q_given ? "cu_seqlens_k" : "cu_seqlens_q",
                         "both or neither of cu_seqlens_q and cu_seqlens_k",
                         q_given ? "only cu_seqlens_q" : "only cu_seqlens_k");
  }
}

/// Checks offsets [B + 1]: they start at 0 and never decrease, and no sequence exceeds `longest`.
void check_offsets(const char* name, const int32_t* offsets, int64_t batch, int64_t longest) {
  const auto entry = [](int64_t i, int32_t value) {
    return std::to_string(value) + " at index " + std::to_string(i);
  };
  if (offsets[0] != 0) throw_argument_error(name, "0 at index 0", entry(0, offsets[0]));
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = static_cast<int64_t>(offsets[b + 1]) - offsets[b];
    if (length < 0) {
      throw_argument_error(name, "offsets that never decrease",
                           entry(b + 1, offsets[b + 1]) + " after " + std::to_string(offsets[b]));
    }
    if (length > longest) {
      throw_argument_error(
          name, "sequences of at most " + std::to_string(longest),
          "a sequence of " + std::to_string(length) + " at index " + std::to_string(b));
    }
  }
}

void check_within(const char* name, const int32_t* values, int64_t b, int64_t upper,
                  const char* upper_name) {
  if (values[b] >= 0 && values[b] <= upper) return;
  throw_argument_error(
      name, "0 <= " + std::string(name) + "[b] <= " + upper_name + " = " + std::to_string(upper),
      std::to_string(values[b]) + " at index " + std::to_string(b));
}

void check_host_arrays(const Problem& problem) {
  if (problem.cu_seqlens_q != nullptr) {
    check_offsets("cu_seqlens_q", problem.cu_seqlens_q, problem.batch, problem.seq_q);
    check_offsets("cu_seqlens_k", problem.cu_seqlens_k, problem.batch, problem.seq_k);
  }
  for (int64_t b = 0; b < problem.batch; ++b) {
    const int64_t keys = problem.cu_seqlens_k == nullptr
                             ? problem.seq_k
                             : problem.cu_seqlens_k[b + 1] - problem.cu_seqlens_k[b];
    if (problem.key_lengths != nullptr) {
      check_within("key_lengths", problem.key_lengths, b, keys, "N");
    }
    if (problem.key_starts != nullptr) check_within("key_starts", problem.key_starts, b, keys, "N");
  }
}

}  // namespace

void check_range(const char* name, int64_t begin, int64_t end, int64_t cells, int64_t size) {
  const int64_t extent = end - begin;
  if (begin < 0 || extent < 0 || end > size) {
    throw_argument_error(name, "a range within [0, " + std::to_string(size) + ")",
                         "[" + std::to_string(begin) + ", " + std::to_string(end) + ")");
  }
  if (cells > extent || cells < (extent > 0 ? 1 : 0)) {
    throw_argument_error(name, "between 1 and " + std::to_string(extent) + " cells",
                         std::to_string(cells));
  }
}

void validate(const Problem& problem, bool host_arrays) {
  check_sizes(problem);
  check_noise_heads(problem);
  if (!host_arrays) check_own_noise_heads(problem);
  check_pages(problem);
  check_pointers(problem);
  check_finite("scale", problem.scale);
  check_finite("scale2", problem.scale2);
  check_size("window.left", problem.window.left, -1);
  check_size("window.right", problem.window.right, 0);
  if (host_arrays) check_host_arrays(problem);
}

void validate(const ForwardParams& params, bool host_arrays) {
  validate(static_cast<const Problem&>(params), host_arrays);
  const bool rows = has_rows(params) && params.value_dim > 0;
  check_pointer("v", rows && params.seq_k > 0, params.v.data);
  check_pointer("out", rows, params.out.data);
  if (has_rows(params) && static_cast<bool>(params.lse1) != static_cast<bool>(params.lse2)) {
    throw_argument_error(params.lse1 ? "lse2" : "lse1", "both or neither of lse1 and lse2",
                         "only one of them");
  }
}

void validate(const BackwardParams& params, bool host_arrays) {
  validate(static_cast<const Problem&>(params), host_arrays);
  const bool rows = has_rows(params) && params.value_dim > 0;
  check_pointer("v", rows && params.seq_k > 0, params.v.data);
  check_pointer("dout", rows, params.dout.data);
}

void validate(const StatsParams& params, bool host_arrays) {
  validate(static_cast<const Problem&>(params), host_arrays);
  check_own_noise_heads(params);
  check_pointer("stats", has_rows(params), params.stats.data);
}

void validate(const StatsBackwardParams& params, bool host_arrays) {
  validate(static_cast<const Problem&>(params), host_arrays);
  check_own_noise_heads(params);
  check_pointer("dstats", has_rows(params), params.dstats.data);
}

void validate(const MapParams& params, bool host_arrays) {
  validate(static_cast<const Problem&>(params), host_arrays);
  check_own_noise_heads(params);
  check_range("rows", params.row_begin, params.row_end, params.rows, params.seq_q);
  check_range("columns", params.col_begin, params.col_end, params.cols, params.seq_k);
  const bool cells = params.batch > 0 && params.heads > 0 && params.rows > 0 && params.cols > 0;
  check_pointer("map", cells, params.map);
}

}  // namespace diffattn
