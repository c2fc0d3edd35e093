// SPDX-License-Identifier: Apache-2.0
//
// Runs the steps of a backward: recompute O and o2 if the forward did not save them, the pass over
// rows, the passes over keys and queries, and the sums over broadcast dimensions.

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/cuda.h"
#include "diffattn/kernels/error.h"
#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/dispatch/forward.h"
#include "kernels/cuda/simt/launch.h"
#include "kernels/cuda/sm80/backward/launch.h"
#include "kernels/cuda/sm90/backward/launch.h"
#include "kernels/cuda/tf32/launch.h"

namespace diffattn::cuda {
namespace {

/// Fills workspace.o and workspace.o2. The forward also writes `out`: into d_o, which a later step
/// overwrites.
void recompute_outputs(const BackwardParams& params, const BackwardWorkspace& workspace,
                       cudaStream_t stream) {
  ForwardParams forward_params;
  static_cast<Problem&>(forward_params) = params;
  forward_params.v = params.v;
  forward_params.out = workspace.d_o;
  run_forward(forward_params, {workspace.o, workspace.o2}, stream);
}

/// Runs the backward without sm_90 instructions.
void run_without_sm90(const BackwardParams& params, const BackwardWorkspace& workspace,
                      cudaStream_t stream) {
  if (sm80::takes_backward(params)) return sm80::backward(params, workspace, stream);
  if (!params.dq1 && !params.dq2 && !params.dk1 && !params.dk2 && !params.dv) return;
  if (tf32::takes_backward(params)) {
    tf32::backward(params, workspace, stream);
  } else {
    simt::backward(params, workspace, stream);
  }
}

}  // namespace

const char* backward_route(const BackwardParams& params) {
  if (sm90::takes_backward(params)) return "sm90";
  if (sm80::takes_backward(params)) return "sm80";
  return tf32::takes_backward(params) ? "tf32" : "simt";
}

size_t backward_workspace_bytes(const BackwardParams& params) {
  return BackwardWorkspace(params, nullptr).bytes;
}

void backward(const BackwardParams& params, void* memory, Stream stream) {
  validate(params, /*host_arrays=*/false);
  require_taken(params);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const BackwardWorkspace workspace(params, memory);
  const bool has_rows = params.batch * params.heads * params.seq_q > 0;
  if (has_rows && (!params.lse1 || !params.lse2)) {
    throw_argument_error("lse1, lse2", "the tensors that the forward wrote", "null");
  }
  if (workspace.bytes != 0 && memory == nullptr) {
    throw_argument_error("workspace", std::to_string(workspace.bytes) + " bytes", "null");
  }
  if (!params.o || !params.o2) recompute_outputs(params, workspace, cuda_stream);
  if (workspace.sm90) {
    sm90::backward(params, workspace, cuda_stream);
  } else {
    prepare_rows(params, workspace, cuda_stream);
    run_without_sm90(params, workspace, cuda_stream);
    reduce_dlambda(params, workspace, cuda_stream);
  }
  reduce_dmask(params, workspace, cuda_stream);
}

}  // namespace diffattn::cuda
