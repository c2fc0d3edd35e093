// SPDX-License-Identifier: Apache-2.0
//
// The C++ face of the operators.

#include "diffattn/ops.h"

#include "diffattn/kernels/error.h"
#include "ops/entry.h"

namespace diffattn {
namespace {

ops::ProblemArguments problem_arguments(const torch::Tensor& q1, const torch::Tensor& q2,
                                        const torch::Tensor& k1, const torch::Tensor& k2,
                                        const torch::Tensor& lambda,
                                        const AttentionOptions& options) {
  return {.q1 = q1,
          .q2 = q2,
          .k1 = k1,
          .k2 = k2,
          .lambda = lambda,
          .scale = options.scale(),
          .scale2 = options.scale2(),
          .causal = options.causal(),
          .window = options.window(),
          .mask = options.mask(),
          .key_starts = options.key_starts(),
          .key_lengths = options.key_lengths(),
          .cu_seqlens_q = options.cu_seqlens_q(),
          .cu_seqlens_k = options.cu_seqlens_k()};
}

ops::AttentionArguments attention_arguments(const torch::Tensor& q1, const torch::Tensor& q2,
                                            const torch::Tensor& k1, const torch::Tensor& k2,
                                            const torch::Tensor& v, const torch::Tensor& lambda,
                                            const AttentionOptions& options) {
  return {problem_arguments(q1, q2, k1, k2, lambda, options), v, options.norm_weight(),
          options.norm_eps(), options.out_scale()};
}

}  // namespace

torch::Tensor attention(const torch::Tensor& q1, const torch::Tensor& q2, const torch::Tensor& k1,
                        const torch::Tensor& k2, const torch::Tensor& v,
                        const torch::Tensor& lambda, const AttentionOptions& options) {
  return ops::call::attention(attention_arguments(q1, q2, k1, k2, v, lambda, options));
}

torch::Tensor decode(const torch::Tensor& q1, const torch::Tensor& q2, const torch::Tensor& k1,
                     const torch::Tensor& k2, const torch::Tensor& v, const torch::Tensor& lambda,
                     const AttentionOptions& options) {
  if (options.cu_seqlens_q() || options.cu_seqlens_k()) {
    throw_argument_error("cu_seqlens_q", "a cache [B, N, Hkv, D] when decoding",
                         "packed sequences");
  }
  return ops::call::decode(attention_arguments(q1, q2, k1, k2, v, lambda, options));
}

torch::Tensor attention_stats(const torch::Tensor& q1, const torch::Tensor& q2,
                              const torch::Tensor& k1, const torch::Tensor& k2,
                              const torch::Tensor& lambda, const AttentionOptions& options,
                              double sparse_threshold) {
  return ops::call::attention_stats(problem_arguments(q1, q2, k1, k2, lambda, options),
                                    sparse_threshold);
}

torch::Tensor attention_map(const torch::Tensor& q1, const torch::Tensor& q2,
                            const torch::Tensor& k1, const torch::Tensor& k2,
                            const torch::Tensor& lambda, const AttentionOptions& options,
                            const MapOptions& map) {
  const bool packed = options.cu_seqlens_q().has_value();
  const auto longest = [&](const torch::Tensor& rows, const std::optional<torch::Tensor>& offsets) {
    if (!packed) return rows.size(1);
    return offsets->numel() < 2 ? 0 : offsets->diff().max().item<int64_t>();
  };
  const int64_t row_end = map.row_end().value_or(longest(q1, options.cu_seqlens_q()));
  const int64_t col_end = map.col_end().value_or(longest(k1, options.cu_seqlens_k()));
  return ops::call::attention_map(problem_arguments(q1, q2, k1, k2, lambda, options),
                                  {map.row_begin(), row_end, map.col_begin(), col_end,
                                   map.rows().value_or(row_end - map.row_begin()),
                                   map.cols().value_or(col_end - map.col_begin())});
}

}  // namespace diffattn
