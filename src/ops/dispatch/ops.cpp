// SPDX-License-Identifier: Apache-2.0
//
// The C++ face of the operators.

#include "diffattn/ops.h"
#include "ops/dispatch/attention_checkpoint.h"

#include "diffattn/kernels/error.h"
#include "ops/dispatch/again.h"
#include "ops/glue/allocate.h"
#include "ops/glue/checks.h"
#include "ops/dispatch/cuda_fused.h"
#include "ops/glue/entry.h"

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

/// Does a kernel gain by known sums?
bool takes_recompute(const ops::AttentionArguments& a) {
  return a.q1.is_cuda() && ops::cuda_fused_takes(a, a.v.size(-1)) &&
         ops::cuda_fused()->takes_recompute(a);
}

/// Of the same call, as far as shapes and types tell.
void check_kept(const KeptAttention& kept, const ops::AttentionArguments& a) {
  if (!kept.lse2.defined() || !kept.o2.defined() || kept.out.defined() != kept.o.defined()) {
    throw_argument_error("kept", "what attention_first gave", "a part of it");
  }
  ops::check_lse(kept.lse1, kept.lse2, a);
  if (kept.out.defined()) ops::check_output("out", kept.out, a);
  const auto check_saved = [&](const char* name, const torch::Tensor& saved) {
    if (saved.defined() && saved.dim() > 1) ops::check_output(name, saved, a, ops::saved_width(a));
  };
  check_saved("o", kept.o);
  check_saved("o2", kept.o2);
}

}  // namespace

torch::Tensor attention(const torch::Tensor& q1, const torch::Tensor& q2, const torch::Tensor& k1,
                        const torch::Tensor& k2, const torch::Tensor& v,
                        const torch::Tensor& lambda, const AttentionOptions& options) {
  return ops::call::attention(attention_arguments(q1, q2, k1, k2, v, lambda, options));
}

FirstAttention attention_first(const torch::Tensor& q1, const torch::Tensor& q2,
                               const torch::Tensor& k1, const torch::Tensor& k2,
                               const torch::Tensor& v, const torch::Tensor& lambda,
                               const AttentionOptions& options, KeepAttention keep) {
  const torch::NoGradGuard no_grad;
  const auto a = ops::after_autocast(attention_arguments(q1, q2, k1, k2, v, lambda, options));
  ops::check(a);
  const bool sums = keep == KeepAttention::kSums && takes_recompute(a);
  if (keep != KeepAttention::kResults && !sums) return {ops::call::attention(a), {}};
  const ops::ForwardResult r =
      ops::call::attention_forward(a, sums || ops::backward_reads_outputs(a));
  if (sums) return {r.out, {.out = {}, .lse1 = r.lse1, .lse2 = r.lse2, .o = {}, .o2 = r.o2}};
  return {r.out, {r.out, r.lse1, r.lse2, r.o, r.o2}};
}

torch::Tensor attention_again(const torch::Tensor& q1, const torch::Tensor& q2,
                              const torch::Tensor& k1, const torch::Tensor& k2,
                              const torch::Tensor& v, const torch::Tensor& lambda,
                              const AttentionOptions& options, const KeptAttention& kept) {
  const auto a = ops::after_autocast(attention_arguments(q1, q2, k1, k2, v, lambda, options));
  if (!kept.lse1.defined()) return ops::call::attention(a);
  ops::check(a);
  check_kept(kept, a);
  return ops::forward_again(a, kept);
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
  // 0 for shapes that the operator refuses.
  const auto longest = [](const torch::Tensor& rows,
                          const std::optional<torch::Tensor>& offsets) -> int64_t {
    if (!offsets) return rows.dim() > 1 ? rows.size(1) : 0;
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
