// SPDX-License-Identifier: Apache-2.0
//
// Launches the sm80 backward with the smallest padded widths (kD, kDv) that hold the problem, from
// the same table as the forward's.

#include "kernels/cuda/sm80/backward/launch.h"

namespace diffattn::cuda::sm80 {
namespace {

template <class T>
void backward_of(const BackwardParams& params, const BackwardWorkspace& workspace,
                 cudaStream_t stream) {
  const int64_t d = params.head_dim, dv = params.value_dim;
  if (d <= 32 && dv <= 64) return launch_backward<T, 32, 64>(params, workspace, stream);
  if (d <= 64 && dv <= 64) return launch_backward<T, 64, 64>(params, workspace, stream);
  if (d <= 64 && dv <= 128) return launch_backward<T, 64, 128>(params, workspace, stream);
  if (dv <= 128) return launch_backward<T, 128, 128>(params, workspace, stream);
  if (d <= 96 && dv <= 192) return launch_backward<T, 96, 192>(params, workspace, stream);
  launch_backward<T, 128, 256>(params, workspace, stream);
}

}  // namespace

bool takes_backward(const Problem& problem) {
  return (problem.dtype == Dtype::kBFloat16 || problem.dtype == Dtype::kFloat16) &&
         problem.head_dim <= 128 && problem.value_dim <= 256;
}

bool is_fused(const BackwardParams& params) {
  const bool has_registers = params.head_dim <= 64 && params.value_dim <= 128;
  return !params.deterministic && has_registers && takes_backward(params) &&
         (params.dq1 || params.dq2) && (params.dk1 || params.dk2 || params.dv);
}

int64_t dq_units(const BackwardParams& params) {
  const bool packed = params.cu_seqlens_q != nullptr && params.total_q > 0;
  const int64_t rows = packed ? params.total_q : params.batch * params.seq_q;
  return rows / 16 + params.batch;
}

int64_t dq_sum_bytes(const BackwardParams& params) {
  if (!is_fused(params)) return 0;
  const int64_t width = params.head_dim <= 32 && params.value_dim <= 64 ? 32 : 64;  // padded kD
  return kDqCounterBytes + params.heads * dq_units(params) * 2 * 16 * width * 4;
}

void backward(const BackwardParams& params, const BackwardWorkspace& workspace,
              cudaStream_t stream) {
  if (params.dtype == Dtype::kBFloat16) {
    backward_of<bfloat16>(params, workspace, stream);
  } else {
    backward_of<float16>(params, workspace, stream);
  }
}

}  // namespace diffattn::cuda::sm80
