// SPDX-License-Identifier: Apache-2.0
//
// Calls the CUDA kernels. Uses only torch's device-generic interface and no CUDA header, so that it
// compiles against a CPU-only torch. Enqueues on the current stream, never waits, and takes memory
// from torch's allocator.

#include "ops/dispatch/cuda_fused.h"

#include <c10/core/DeviceGuard.h>

#include <string_view>

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/cuda.h"
#include "ops/dispatch/backend_choice.h"
#include "ops/glue/allocate.h"
#include "ops/glue/checks.h"
#include "ops/glue/gradient_views.h"
#include "ops/glue/problem_views.h"
#include "ops/glue/view_of.h"

namespace diffattn::ops {
namespace {

/// Returns device memory, which torch aligns to 512 bytes. 0 bytes give a null pointer.
Tensor workspace_on(const Tensor& like, size_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, like.options().dtype(torch::kByte));
}

constexpr int kHopper = 90, kAmpere = 80;

bool has_sm90() { return cuda::current_capability() == kHopper; }

/// A problem on the current GPU that only uses the kernels that limit_backend() allows.
struct FusedProblem : DeviceProblem {
  FusedProblem(const ProblemArguments& a, Problem& problem) : DeviceProblem(a, problem) {
    const bool only_sm80 = backend_limit() == CudaFused::kSm80;
    problem.max_capability = only_sm80 ? kAmpere : kNoCapabilityLimit;
  }
};

const char* name(const ProblemArguments& a, int64_t value_dim) {
  const c10::DeviceGuard guard(a.q1.device());
  ForwardParams params;
  const FusedProblem views(a, params);
  params.value_dim = value_dim;
  params.v = {params.k1.data, params.seq_k * params.kv_heads * value_dim,
              params.kv_heads * value_dim, value_dim};
  return std::string_view(cuda::forward_route(params)) == CudaFused::kSm90 ? CudaFused::kSm90
                                                                           : CudaFused::kSm80;
}

bool takes(const ProblemArguments& a, int64_t value_dim) {
  const c10::DeviceGuard guard(a.q1.device());
  Problem problem;
  set_sizes(a, problem);
  problem.value_dim = value_dim;
  return cuda::takes(problem, cuda::current_capability());
}

bool takes_pages(const AttentionArguments& a) {
  const c10::DeviceGuard guard(a.q1.device());
  ForwardParams params;
  const FusedProblem views(a, params);
  params.value_dim = a.v.size(-1);
  params.v = view_of(a.v);
  return std::string_view(cuda::forward_route(params)) == "decode";
}

ForwardResult forward(const AttentionArguments& a, SavedOutputs save) {
  if (save == SavedOutputs::kO) {  // no kernel saves o alone
    const ForwardResult r = forward(a, SavedOutputs::kBoth);
    const Tensor o = r.o.narrow(-1, 0, a.v.size(-1)).contiguous();
    return {r.out, r.lse1, r.lse2, o, nothing(a.q1)};
  }
  const c10::DeviceGuard guard(a.q1.device());
  ForwardParams params;
  FusedProblem views(a, params);
  params.value_dim = a.v.size(-1);
  const ForwardResult result = allocate_forward(a, save);
  params.v = view_of(a.v);
  params.epilogue = views.epilogue(a);
  set_outputs(params, result, save);
  const Tensor workspace = workspace_on(a.q1, cuda::forward_workspace_bytes(params));
  cuda::forward(params, workspace.mutable_data_ptr(), current_stream(a.q1.device()));
  return result;
}

/// Runs nothing, so lse1 and lse2 are any non-null pointers, and the outputs stay unset: every
/// kernel can store those that the operators allocate.
bool takes_recompute(const AttentionArguments& a) {
  const c10::DeviceGuard guard(a.q1.device());
  ForwardParams params;
  const FusedProblem views(a, params);
  params.value_dim = a.v.size(-1);
  params.v = view_of(a.v);
  params.lse1 = params.lse2 = {const_cast<void*>(params.lambda.data)};
  return cuda::takes_recompute(params);
}

RecomputeResult recompute(const AttentionArguments& a, const Tensor& lse1, const Tensor& lse2) {
  const c10::DeviceGuard guard(a.q1.device());
  ForwardParams params;
  FusedProblem views(a, params);
  params.value_dim = a.v.size(-1);
  const RecomputeResult result = allocate_recompute(a);
  params.v = view_of(a.v);
  params.epilogue = views.epilogue(a);
  params.out = mutable_view_of(result.out);
  params.lse1 = mutable_rows_of(lse1);  // the kernel only reads lse1 and lse2
  params.lse2 = mutable_rows_of(lse2);
  params.o = mutable_view_of(result.o);
  params.o_rest = rests_of(params.o, result.o, params.value_dim);
  if (!cuda::takes_recompute(params)) {
    const ForwardResult whole = forward(a, SavedOutputs::kBoth);
    return {whole.out, whole.o};
  }
  const Tensor workspace = workspace_on(a.q1, cuda::forward_workspace_bytes(params));
  cuda::recompute(params, workspace.mutable_data_ptr(), current_stream(a.q1.device()));
  return result;
}

BackwardResult backward(const Tensor& dout, const AttentionArguments& a, const Saved& saved,
                        const Wanted& wanted) {
  const c10::DeviceGuard guard(a.q1.device());
  BackwardParams params;
  FusedProblem views(a, params);
  params.value_dim = a.v.size(-1);
  const BackwardResult result = allocate_backward(a, wanted);
  params.v = view_of(a.v);
  params.epilogue = views.epilogue(a);
  params.dout = view_of(dout);
  set_saved(params, saved);
  params.deterministic = at::globalContext().deterministicAlgorithms();
  set_gradients(params, result, params.heads, wanted);
  const Tensor workspace = workspace_on(a.q1, cuda::backward_workspace_bytes(params));
  cuda::backward(params, workspace.mutable_data_ptr(), current_stream(a.q1.device()));
  return result;
}

Tensor stats(const ProblemArguments& a, double sparse_threshold) {
  const c10::DeviceGuard guard(a.q1.device());
  StatsParams params;
  const FusedProblem views(a, params);
  const Tensor result = allocate_stats(a);
  params.sparse_threshold = sparse_threshold;
  params.stats = mutable_view_of(result);
  cuda::stats(params, current_stream(a.q1.device()));
  return result;
}

BackwardResult stats_backward(const Tensor& dstats, const ProblemArguments& a,
                              const StatsWanted& wanted) {
  const c10::DeviceGuard guard(a.q1.device());
  StatsBackwardParams params;
  const FusedProblem views(a, params);
  const BackwardResult result =
      allocate_input_gradients(a, wanted[0], wanted[1], wanted[2], wanted[3], wanted[4], wanted[5]);
  params.dstats = view_of(dstats);
  set_input_gradients(params, result, params.heads, wanted);
  const Tensor workspace = workspace_on(a.q1, cuda::stats_backward_workspace_bytes(params));
  cuda::stats_backward(params, workspace.mutable_data_ptr(), current_stream(a.q1.device()));
  return result;
}

/// Cells beyond the end of a packed sequence are 0: we do not read the lengths.
Tensor map(const ProblemArguments& a, const MapGrid& grid) {
  const c10::DeviceGuard guard(a.q1.device());
  MapParams params;
  const FusedProblem views(a, params);
  check_grid(grid, params.seq_q, params.seq_k);
  const Tensor result = allocate_map(a, grid);
  params.row_begin = grid.row_begin;
  params.row_end = grid.row_end;
  params.col_begin = grid.col_begin;
  params.col_end = grid.col_end;
  params.rows = grid.rows;
  params.cols = grid.cols;
  params.map = result.mutable_data_ptr();
  const Tensor workspace = workspace_on(a.q1, cuda::map_workspace_bytes(params));
  cuda::map(params, workspace.mutable_data_ptr(), current_stream(a.q1.device()));
  return result;
}

}  // namespace

const CudaFused* cuda_fused() {
  static const CudaFused kernels{
      has_sm90,  name,     takes, takes_pages,    forward, takes_recompute,
      recompute, backward, stats, stats_backward, map};
  return &kernels;
}

}  // namespace diffattn::ops
