// SPDX-License-Identifier: Apache-2.0
//
// Which kernel computes a forward.

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/cuda.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/forward.h"
#include "kernels/cuda/simt/launch.h"
#include "kernels/cuda/sm80/decode/launch.h"
#include "kernels/cuda/sm80/forward/launch.h"

namespace diffattn::cuda {

void run_forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream) {
  if (params.batch * params.heads * params.seq_q == 0) return;
  if (sm80::takes_forward(params)) return sm80::forward(params, exact, stream);
  simt::forward(params, exact, stream);
}

size_t forward_workspace_bytes(const ForwardParams& params) {
  return sm80::takes_decode(params) ? sm80::decode_workspace_bytes(params) : 0;
}

void forward(const ForwardParams& params, Stream stream) { forward(params, nullptr, stream); }

void forward(const ForwardParams& params, void* workspace, Stream stream) {
  validate(params, /*host_arrays=*/false);
  require_taken(params);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const bool has_rows = params.batch * params.heads * params.seq_q > 0;
  if (workspace != nullptr && has_rows && sm80::takes_decode(params)) {
    return sm80::decode(params, workspace, cuda_stream);
  }
  run_forward(params, {}, cuda_stream);
}

}  // namespace diffattn::cuda
