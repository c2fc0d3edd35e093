// SPDX-License-Identifier: Apache-2.0
//
// The operators on CPU tensors: check, allocate, fill the parameters, call a kernel.

#include "diffattn/kernels/backend.h"
#include "ops/allocate.h"
#include "ops/backend_choice.h"
#include "ops/checks.h"
#include "ops/composed.h"
#include "ops/entry.h"
#include "ops/host_problem.h"
#include "ops/view_of.h"

namespace diffattn::ops {
namespace {

Epilogue epilogue_of(const AttentionArguments& a, HostProblem& host) {
  return {.norm = a.norm_eps.has_value(),
          .norm_eps = a.norm_eps.value_or(0.0),
          .norm_weight = host.accumulator_data(a.norm_weight),
          .out_scale = a.out_scale};
}

/// A view of a gradient, null when it was not wanted.
View<void> wanted_view(bool wanted, const Tensor& gradient) {
  return wanted ? mutable_view_of(gradient) : View<void>{};
}

void set_input_gradients(ProblemGradients& params, const BackwardResult& r, int64_t heads,
                         const StatsWanted& wanted) {
  params.dq1 = wanted_view(wanted[0], r.dq1);
  params.dq2 = wanted_view(wanted[1], r.dq2);
  params.dk1 = wanted_view(wanted[2], r.dk1);
  params.dk2 = wanted_view(wanted[3], r.dk2);
  if (wanted[4]) params.dlambda = lambda_view(r.dlambda.mutable_data_ptr(), r.dlambda, heads);
  if (wanted[5]) {
    params.dmask = r.dmask.mutable_data_ptr();
    params.dmask_strides = mask_strides(r.dmask);
  }
}

ForwardResult forward(const AttentionArguments& a, bool save_outputs) {
  check(a);
  ForwardParams params;
  HostProblem host(a, params);
  params.value_dim = a.v.size(-1);
  validate(params, /*host_arrays=*/true);
  const Backend* backend = cpu_backend_or_composed(params);
  if (backend == nullptr) return composed::forward(a, save_outputs);

  const ForwardResult result = allocate_forward(a, save_outputs);
  params.v = view_of(a.v);
  params.epilogue = epilogue_of(a, host);
  params.out = mutable_view_of(result.out);
  params.lse1 = mutable_rows_of(result.lse1);
  params.lse2 = mutable_rows_of(result.lse2);
  if (save_outputs) {
    params.o = mutable_view_of(result.o);
    params.o2 = mutable_view_of(result.o2);
  }
  backend->forward(params);
  return result;
}

BackwardResult backward(const Tensor& dout, const AttentionArguments& a, const Saved& saved,
                        Wanted wanted) {
  check(a);
  auto sizes = a.q1.sym_sizes().vec();
  sizes.back() = a.v.sym_size(-1);
  check_gradient("dout", dout, sizes, a.q1);
  BackwardParams params;
  HostProblem host(a, params);
  params.value_dim = a.v.size(-1);
  validate(params, /*host_arrays=*/true);
  const Backend* backend = cpu_backend_or_composed(params);
  if (backend == nullptr) return composed::backward(dout, a, wanted);

  const BackwardResult result = allocate_backward(a, wanted);
  params.v = view_of(a.v);
  params.epilogue = epilogue_of(a, host);
  params.dout = view_of(dout);
  params.lse1 = rows_of(saved.lse1);
  params.lse2 = rows_of(saved.lse2);
  if (saved.o.dim() > 1) {
    params.o = view_of(saved.o);
    params.o2 = view_of(saved.o2);
  }
  set_input_gradients(params, result, params.heads,
                      {wanted[0], wanted[1], wanted[2], wanted[3], wanted[5], wanted[7]});
  params.dv = wanted_view(wanted[4], result.dv);
  if (wanted[6]) params.dnorm_weight = result.dnorm_weight.mutable_data_ptr();
  backend->backward(params);
  return result;
}

Tensor decode(const AttentionArguments& a) { return forward(a, /*save_outputs=*/false).out; }

Tensor stats(const ProblemArguments& a, double sparse_threshold) {
  check(a);
  StatsParams params;
  HostProblem host(a, params);
  validate(params, /*host_arrays=*/true);
  const Backend* backend = cpu_backend_or_composed(params);
  if (backend == nullptr) return composed::stats(a, sparse_threshold);
  const Tensor result = allocate_stats(a);
  params.sparse_threshold = sparse_threshold;
  params.stats = mutable_view_of(result);
  backend->stats(params);
  return result;
}

BackwardResult stats_backward(const Tensor& dstats, const ProblemArguments& a,
                              StatsWanted wanted) {
  check(a);
  StatsBackwardParams params;
  HostProblem host(a, params);
  validate(params, /*host_arrays=*/true);
  const Backend* backend = cpu_backend_or_composed(params);
  if (backend == nullptr) return composed::stats_backward(dstats, a, wanted);
  const BackwardResult result = allocate_input_gradients(a, wanted[0], wanted[1], wanted[2],
                                                         wanted[3], wanted[4], wanted[5]);
  params.dstats = view_of(dstats);
  set_input_gradients(params, result, params.heads, wanted);
  backend->stats_backward(params);
  return result;
}

Tensor map(const ProblemArguments& a, const MapGrid& grid) {
  check(a);
  MapParams params;
  HostProblem host(a, params);
  validate(params, /*host_arrays=*/true);
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
  m.impl("attention_forward", entry::attention_forward<forward>);
  m.impl("attention_backward", entry::attention_backward<backward>);
  m.impl("decode", entry::decode<decode>);
  m.impl("attention_stats", entry::attention_stats<stats>);
  m.impl("attention_stats_backward", entry::attention_stats_backward<stats_backward>);
  m.impl("attention_map", entry::attention_map<map>);
}

}  // namespace diffattn::ops
