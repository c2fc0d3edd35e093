// SPDX-License-Identifier: Apache-2.0
//
// Chooses the kernel that computes a forward.

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/cuda.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/dispatch/forward.h"
#include "kernels/cuda/simt/launch.h"
#include "kernels/cuda/sm80/decode/launch.h"
#include "kernels/cuda/sm80/forward/launch.h"
#include "kernels/cuda/sm90/forward/launch.h"
#include "kernels/cuda/tf32/launch.h"

namespace diffattn::cuda {
namespace {

bool has_rows(const Problem& problem) { return problem.batch * problem.heads * problem.seq_q > 0; }

bool takes_sm90(const ForwardParams& params) {
  constexpr int kHopper = 90;  // no other GPU has wgmma
  return usable_capability(params) == kHopper && sm90::takes_forward(params);
}

ForwardParams without_o2(ForwardParams params) {
  params.o2 = params.o2_rest = {};
  return params;
}

}  // namespace

void run_forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream) {
  if (!has_rows(params)) return;
  if (sm80::takes_forward(params)) return sm80::forward(params, exact, stream);
  if (tf32::takes_forward(params)) return tf32::forward(params, exact, stream);
  simt::forward(params, exact, stream);
}

size_t forward_workspace_bytes(const ForwardParams& params) {
  if (!has_rows(params)) return 0;
  if (sm80::takes_decode(params)) {
    return sm80::decode_workspace_bytes(params, sm80::decode_plan(params));
  }
  return takes_sm90(params) ? sm90::forward_workspace_bytes(params) : 0;
}

const char* forward_route(const ForwardParams& params) {
  if (sm80::takes_decode(params)) return "decode";
  if (takes_sm90(params)) return "sm90";
  if (sm80::takes_forward(params)) return "sm80";
  return tf32::takes_forward(params) ? "tf32" : "simt";
}

void forward(const ForwardParams& params, Stream stream) { forward(params, nullptr, stream); }

void forward(const ForwardParams& params, void* workspace, Stream stream) {
  validate(params, /*host_arrays=*/false);
  require_taken(params);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (workspace != nullptr && has_rows(params)) {
    if (sm80::takes_decode(params)) {
      return sm80::decode(params, sm80::decode_plan(params), workspace, cuda_stream);
    }
    if (params.pages.table == nullptr && takes_sm90(params)) {
      return sm90::forward(params, workspace, cuda_stream);
    }
  }
  if (params.pages.table != nullptr) {
    throw_argument_error("pages", "none, unless `forward_route` is decode, with a workspace",
                         "a table");
  }
  run_forward(params, {}, cuda_stream);
}

void recompute(const ForwardParams& params, void* workspace, Stream stream) {
  const ForwardParams wanted = without_o2(params);
  if (!wanted.lse1) throw_argument_error("lse1", "lse1 and lse2 of an earlier forward", "none");
  validate(wanted, /*host_arrays=*/false);
  if (workspace == nullptr || !takes_recompute(wanted)) return forward(wanted, workspace, stream);
  sm90::recompute(wanted, workspace, static_cast<cudaStream_t>(stream));
}

bool takes_recompute(const ForwardParams& params) {
  return has_rows(params) && !sm80::takes_decode(params) && takes_sm90(params) &&
         sm90::takes_recompute(without_o2(params));
}

}  // namespace diffattn::cuda
