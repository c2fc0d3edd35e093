// SPDX-License-Identifier: Apache-2.0
//
// The operators on CPU tensors: check the arguments, allocate the results, fill the parameters and
// call a kernel.

#include "diffattn/kernels/backend.h"
#include "ops/composed/composed.h"
#include "ops/dispatch/backend_choice.h"
#include "ops/dispatch/entry.h"
#include "ops/glue/allocate.h"
#include "ops/glue/checks.h"
#include "ops/glue/gradient_views.h"
#include "ops/glue/noise_heads.h"
#include "ops/glue/problem_views.h"
#include "ops/glue/view_of.h"

namespace diffattn::ops::on_cpu {
namespace {

/// Clears the bytes behind each row of o or o2, which CPU kernels do not write.
void clear_rests(const Tensor& saved, int64_t width) {
  if (saved.dim() == 1 || saved.size(-1) == width) return;
  saved.narrow(-1, width, saved.size(-1) - width).zero_();
}

ForwardResult forward(const AttentionArguments& a, SavedOutputs save) {
  check(a);
  ForwardParams params;
  HostProblem host(a, params);
  params.value_dim = a.v.size(-1);
  validate(static_cast<const Problem&>(params), /*host_arrays=*/true);
  const Backend* backend = cpu_backend_or_composed(params);
  if (backend == nullptr) {
    return composed::forward(a.paged() ? without_pages(a) : a, save);
  }
  const ForwardResult result = allocate_forward(a, save);
  params.v = view_of(a.v);
  params.epilogue = host.epilogue(a);
  set_outputs(params, result, save);
  backend->forward(params);
  for (const Tensor& saved : {result.o, result.o2}) clear_rests(saved, params.value_dim);
  return result;
}

/// No CPU kernel saves work with known lse1 and lse2, so a whole forward runs.
RecomputeResult recompute(const AttentionArguments& a, const Tensor& lse1, const Tensor& lse2) {
  check(a);
  check_lse(lse1, lse2, a);
  const ForwardResult whole = forward(a, SavedOutputs::kBoth);
  return {whole.out, whole.o};
}

BackwardResult backward(const Tensor& dout, const AttentionArguments& a, const Saved& saved,
                        Wanted wanted) {
  check(a);
  check_output("dout", dout, a);
  BackwardParams params;
  HostProblem host(a, params);
  params.value_dim = a.v.size(-1);
  validate(static_cast<const Problem&>(params), /*host_arrays=*/true);
  const Backend* backend = cpu_backend_or_composed(params);
  if (backend == nullptr) return composed::backward(dout, a, wanted);

  const BackwardResult result = allocate_backward(a, wanted);
  params.v = view_of(a.v);
  params.epilogue = host.epilogue(a);
  params.dout = view_of(dout);
  set_saved(params, saved);
  set_gradients(params, result, params.heads, wanted);
  backend->backward(params);
  return result;
}

Tensor decode(const AttentionArguments& a) { return forward(a, SavedOutputs::kNone).out; }

Tensor stats(const ProblemArguments& a, double sparse_threshold) {
  check(a);
  StatsParams params;
  HostProblem host(a, params);
  validate(static_cast<const Problem&>(params), /*host_arrays=*/true);
  const Backend* backend = cpu_backend_or_composed(params);
  if (backend == nullptr) return composed::stats(a, sparse_threshold);
  const Tensor result = allocate_stats(a);
  params.sparse_threshold = sparse_threshold;
  params.stats = mutable_view_of(result);
  backend->stats(params);
  return result;
}

BackwardResult stats_backward(const Tensor& dstats, const ProblemArguments& a, StatsWanted wanted) {
  check(a);
  StatsBackwardParams params;
  HostProblem host(a, params);
  validate(static_cast<const Problem&>(params), /*host_arrays=*/true);
  const Backend* backend = cpu_backend_or_composed(params);
  if (backend == nullptr) return composed::stats_backward(dstats, a, wanted);
  const BackwardResult result =
      allocate_input_gradients(a, wanted[0], wanted[1], wanted[2], wanted[3], wanted[4], wanted[5]);
  params.dstats = view_of(dstats);
  set_input_gradients(params, result, params.heads, wanted);
  backend->stats_backward(params);
  return result;
}

Tensor map(const ProblemArguments& a, const MapGrid& grid) {
  check(a);
  MapParams params;
  HostProblem host(a, params);
  validate(static_cast<const Problem&>(params), /*host_arrays=*/true);
  check_grid(grid, params.seq_q, params.seq_k);
  const Backend* backend = cpu_backend_or_composed(params);
  if (backend == nullptr) return composed::map(a, grid);
  const Tensor result = allocate_map(a, grid);
  params.row_begin = grid.row_begin;
  params.row_end = grid.row_end;
  params.col_begin = grid.col_begin;
  params.col_end = grid.col_end;
  params.rows = grid.rows;
  params.cols = grid.cols;
  params.map = result.mutable_data_ptr();
  backend->map(params);
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(diffattn, CPU, m) {
  constexpr auto kMasks = masks_noise_heads;
  entry::implement<repeating<forward, kMasks>, repeating<recompute, kMasks>,
                   repeating_gradients<backward, kMasks>, repeating<decode, kMasks>,
                   repeating<stats>, repeating_gradients<stats_backward>, repeating<map>>(m);
}

}  // namespace diffattn::ops::on_cpu
