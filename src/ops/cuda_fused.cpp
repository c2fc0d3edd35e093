// SPDX-License-Identifier: Apache-2.0
//
// Glue to the CUDA kernels, by torch's device-generic interface only: no CUDA header, so that this
// compiles against a CPU-only torch. Enqueues on the current stream, waits for nothing, and takes
// memory from torch's allocator.

#include "ops/cuda_fused.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/cuda.h"
#include "ops/allocate.h"
#include "ops/gradient_views.h"
#include "ops/problem_views.h"

namespace diffattn::ops {
namespace {

cuda::Stream current_stream(const torch::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

/// torch's allocator aligns to 512 bytes; no bytes give a null pointer.
Tensor workspace_on(const Tensor& like, size_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, like.options().dtype(torch::kByte));
}

bool takes(const ProblemArguments& a, int64_t value_dim) {
  Problem problem;
  const DeviceProblem views(a, problem);
  problem.value_dim = value_dim;
  const c10::DeviceGuard guard(a.q1.device());
  return cuda::takes(problem, cuda::current_capability());
}

ForwardResult forward(const AttentionArguments& a, bool save_outputs) {
  const c10::DeviceGuard guard(a.q1.device());
  ForwardParams params;
  DeviceProblem views(a, params);
  params.value_dim = a.v.size(-1);
  const ForwardResult result = allocate_forward(a, save_outputs);
  params.v = view_of(a.v);
  params.epilogue = views.epilogue(a);
  set_outputs(params, result, save_outputs);
  const Tensor workspace = workspace_on(a.q1, cuda::forward_workspace_bytes(params));
  cuda::forward(params, workspace.mutable_data_ptr(), current_stream(a.q1.device()));
  return result;
}

BackwardResult backward(const Tensor& dout, const AttentionArguments& a, const Saved& saved,
                        const Wanted& wanted) {
  const c10::DeviceGuard guard(a.q1.device());
  BackwardParams params;
  DeviceProblem views(a, params);
  params.value_dim = a.v.size(-1);
  const BackwardResult result = allocate_backward(a, wanted);
  params.v = view_of(a.v);
  params.epilogue = views.epilogue(a);
  params.dout = view_of(dout);
  set_saved(params, saved);
  set_gradients(params, result, params.heads, wanted);
  const Tensor workspace = workspace_on(a.q1, cuda::backward_workspace_bytes(params));
  cuda::backward(params, workspace.mutable_data_ptr(), current_stream(a.q1.device()));
  return result;
}

}  // namespace

const CudaFused* cuda_fused() {
  static const CudaFused kernels{"mma", "fused tiles, mma.sync, sm_80 and later", takes, forward,
                                 backward};
  return &kernels;
}

}  // namespace diffattn::ops
