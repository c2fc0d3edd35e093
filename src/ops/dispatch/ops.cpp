// SPDX-License-Identifier: Apache-2.0
//
// The C++ functions of the operators.

#include "diffattn/ops.h"

#include "diffattn/kernels/error.h"
#include "ops/dispatch/attention_checkpoint.h"
#include "ops/dispatch/cuda_fused.h"
#include "ops/dispatch/entry.h"
#include "ops/glue/allocate.h"
#include "ops/glue/checks.h"
#include "ops/glue/noise_heads.h"

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
          .cu_seqlens_k = options.cu_seqlens_k(),
          .window_left = options.window_left(),
          .window_right = options.window_right()};
}

ops::AttentionArguments attention_arguments(const torch::Tensor& q1, const torch::Tensor& q2,
                                            const torch::Tensor& k1, const torch::Tensor& k2,
                                            const torch::Tensor& v, const torch::Tensor& lambda,
                                            const AttentionOptions& options) {
  return {problem_arguments(q1, q2, k1, k2, lambda, options), v, options.norm_weight(),
          options.norm_eps(), options.out_scale()};
}

/// True if a kernel restores the forward from lse1 and lse2 with less work.
bool takes_recompute(ops::AttentionArguments a) {
  if (ops::shares_noise_heads(a)) a.q2 = a.q1;  // the kernel gets as many noise heads
  return a.q1.is_cuda() && ops::cuda_fused_takes(a, a.v.size(-1)) &&
         ops::cuda_fused()->takes_recompute(a);
}

/// Checks that a checkpoint is complete and has the shapes and types of this call.
void check_checkpoint(const AttentionCheckpoint& saved, const ops::AttentionArguments& a) {
  if (!saved.lse2.defined() || !saved.o2.defined() || saved.out.defined() != saved.o.defined()) {
    throw_argument_error("checkpoint", "all tensors that attention_with_checkpoint saved",
                         "only some of them");
  }
  ops::check_lse(saved.lse1, saved.lse2, a);
  if (saved.out.defined()) ops::check_output("out", saved.out, a);
  const bool alone = saved.o2.dim() == 1;  // o without o2 has plain rows
  const auto check_rows = [&](const char* name, const torch::Tensor& rows) {
    if (!rows.defined() || rows.dim() == 1) return;
    ops::check_output(name, rows, a, alone ? a.v.sym_size(-1) : ops::saved_width(a));
  };
  check_rows("o", saved.o);
  check_rows("o2", saved.o2);
}

}  // namespace

torch::Tensor attention(const torch::Tensor& q1, const torch::Tensor& q2, const torch::Tensor& k1,
                        const torch::Tensor& k2, const torch::Tensor& v,
                        const torch::Tensor& lambda, const AttentionOptions& options) {
  return ops::call::attention(attention_arguments(q1, q2, k1, k2, v, lambda, options));
}

CheckpointedAttention attention_with_checkpoint(const torch::Tensor& q1, const torch::Tensor& q2,
                                                const torch::Tensor& k1, const torch::Tensor& k2,
                                                const torch::Tensor& v, const torch::Tensor& lambda,
                                                const AttentionOptions& options,
                                                KeepAttention keep) {
  const torch::NoGradGuard no_grad;
  const auto a = ops::after_autocast(attention_arguments(q1, q2, k1, k2, v, lambda, options));
  ops::check(a);
  const bool sums = keep == KeepAttention::kSums && takes_recompute(a);
  if (keep != KeepAttention::kResults && !sums) return {ops::call::attention(a), {}};
  const ops::ForwardResult r = ops::call::attention_forward(
      a, sums ? ops::SavedOutputs::kBoth : ops::outputs_of_backward(a));
  if (sums) return {r.out, {.out = {}, .lse1 = r.lse1, .lse2 = r.lse2, .o = {}, .o2 = r.o2}};
  return {r.out, {r.out, r.lse1, r.lse2, r.o, r.o2}};
}

torch::Tensor attention_from_checkpoint(const torch::Tensor& q1, const torch::Tensor& q2,
                                        const torch::Tensor& k1, const torch::Tensor& k2,
                                        const torch::Tensor& v, const torch::Tensor& lambda,
                                        const AttentionOptions& options,
                                        const AttentionCheckpoint& checkpoint) {
  const auto a = ops::after_autocast(attention_arguments(q1, q2, k1, k2, v, lambda, options));
  if (!checkpoint.lse1.defined()) return ops::call::attention(a);
  ops::check(a);
  check_checkpoint(checkpoint, a);
  return ops::restored_attention(a, checkpoint);
}

torch::Tensor decode(const torch::Tensor& q1, const torch::Tensor& q2, const torch::Tensor& k1,
                     const torch::Tensor& k2, const torch::Tensor& v, const torch::Tensor& lambda,
                     const AttentionOptions& options,
                     const std::optional<torch::Tensor>& block_table) {
  if (options.cu_seqlens_q() || options.cu_seqlens_k()) {
    throw_argument_error("cu_seqlens_q", "none when decoding: the cache has shape [B, N, Hkv, D]",
                         "packed sequences");
  }
  auto arguments = attention_arguments(q1, q2, k1, k2, v, lambda, options);
  arguments.block_table = block_table;
  return ops::call::decode(arguments);
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
  // Shapes that the operator refuses give 0.
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
