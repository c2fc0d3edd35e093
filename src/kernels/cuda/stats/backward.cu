// SPDX-License-Identifier: Apache-2.0
//
// Backward of the row statistics: dq and dk (gradients.cu), then dlambda and dmask, whose entries
// are sums over the rows and scores that share them.

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/cuda.h"
#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/stats/workspace.cuh"

namespace diffattn::cuda {

size_t stats_backward_workspace_bytes(const StatsBackwardParams& params) {
  return StatsWorkspace(params, nullptr).bytes;
}

void stats_backward(const StatsBackwardParams& params, void* memory, Stream stream) {
  validate(params, /*host_arrays=*/false);
  require_maps_taken(params);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const StatsWorkspace workspace(params, memory);
  if (workspace.bytes != 0 && memory == nullptr) {
    throw_argument_error("workspace", std::to_string(workspace.bytes) + " bytes", "null");
  }
  stats_gradients(params, workspace, cuda_stream);
  reduce_dlambda(params, params.dlambda, workspace.minus_dlambda, workspace.dlambda_parts,
                 cuda_stream);
  reduce_stats_dmask(params, workspace, cuda_stream);
}

}  // namespace diffattn::cuda
