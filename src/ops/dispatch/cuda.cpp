// SPDX-License-Identifier: Apache-2.0
//
// The operators on CUDA tensors: a fused kernel if one supports them, else the composed backend.

#include "diffattn/kernels/backend.h"
#include "ops/composed/composed.h"
#include "ops/dispatch/cuda_fused.h"
#include "ops/dispatch/entry.h"
#include "ops/glue/checks.h"
#include "ops/glue/noise_heads.h"
#include "ops/glue/problem_views.h"

namespace diffattn::ops::on_cuda {
namespace {

/// Checks the values of index tensors, which the composed backend reads on the host anyway.
void check_values(const ProblemArguments& a) {
  ProblemArguments host = a;
  const auto to_host = [](OptionalTensor& index) {
    if (index) index = index->cpu();
  };
  to_host(host.key_starts);
  to_host(host.key_lengths);
  to_host(host.cu_seqlens_q);
  to_host(host.cu_seqlens_k);
  to_host(host.block_table);
  Problem problem;
  const HostProblem converted(host, problem);
  validate(problem, /*host_arrays=*/true);
}

ForwardResult forward(const AttentionArguments& a, SavedOutputs save) {
  check(a);
  const bool fused = cuda_fused_takes(a, a.v.size(-1));
  if (a.paged() && !(fused && cuda_fused()->takes_pages(a))) {
    check_values(a);
    return forward(without_pages(a), save);
  }
  if (fused) return cuda_fused()->forward(a, save);
  check_values(a);
  return composed::forward(a, save);
}

RecomputeResult recompute(const AttentionArguments& a, const Tensor& lse1, const Tensor& lse2) {
  check(a);
  check_lse(lse1, lse2, a);
  if (cuda_fused_takes(a, a.v.size(-1))) return cuda_fused()->recompute(a, lse1, lse2);
  const ForwardResult whole = forward(a, SavedOutputs::kBoth);
  return {whole.out, whole.o};
}

BackwardResult backward(const Tensor& dout, const AttentionArguments& a, const Saved& saved,
                        Wanted wanted) {
  check(a);
  check_output("dout", dout, a);
  if (cuda_fused_takes(a, a.v.size(-1))) return cuda_fused()->backward(dout, a, saved, wanted);
  check_values(a);
  return composed::backward(dout, a, wanted);
}

Tensor decode(const AttentionArguments& a) { return forward(a, SavedOutputs::kNone).out; }

Tensor stats(const ProblemArguments& a, double sparse_threshold) {
  check(a);
  if (cuda_fused_takes(a)) return cuda_fused()->stats(a, sparse_threshold);
  check_values(a);
  return composed::stats(a, sparse_threshold);
}

BackwardResult stats_backward(const Tensor& dstats, const ProblemArguments& a, StatsWanted wanted) {
  check(a);
  if (cuda_fused_takes(a)) return cuda_fused()->stats_backward(dstats, a, wanted);
  check_values(a);
  return composed::stats_backward(dstats, a, wanted);
}

Tensor map(const ProblemArguments& a, const MapGrid& grid) {
  check(a);
  if (cuda_fused_takes(a)) return cuda_fused()->map(a, grid);
  check_values(a);
  return composed::map(a, grid);
}

}  // namespace

TORCH_LIBRARY_IMPL(diffattn, CUDA, m) {
  entry::implement<repeating<forward>, repeating<recompute>, repeating_gradients<backward>,
                   repeating<decode>, repeating<stats>, repeating_gradients<stats_backward>,
                   repeating<map>>(m);
}

}  // namespace diffattn::ops::on_cuda
