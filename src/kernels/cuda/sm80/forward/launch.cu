// SPDX-License-Identifier: Apache-2.0
//
// Launches the sm80 forward with the smallest padded widths (kD, kDv) that hold the problem.

#include "kernels/cuda/sm80/forward/launch.h"

#include "kernels/cuda/element.cuh"

namespace diffattn::cuda::sm80 {
namespace {

template <class T>
void forward_of(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream) {
  const int64_t d = params.head_dim, dv = params.value_dim;
  if (d <= 32 && dv <= 64) return launch_forward<T, 32, 64>(params, exact, stream);
  if (d <= 64 && dv <= 64) return launch_forward<T, 64, 64>(params, exact, stream);
  if (d <= 64 && dv <= 128) return launch_forward<T, 64, 128>(params, exact, stream);
  if (dv <= 128) return launch_forward<T, 128, 128>(params, exact, stream);
  if (d <= 96 && dv <= 192) return launch_forward<T, 96, 192>(params, exact, stream);
  launch_forward<T, 128, 256>(params, exact, stream);
}

}  // namespace

bool takes_forward(const Problem& problem) {
  return (problem.dtype == Dtype::kBFloat16 || problem.dtype == Dtype::kFloat16) &&
         problem.head_dim <= 128 && problem.value_dim <= 256;
}

void forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream) {
  if (params.dtype == Dtype::kBFloat16) {
    forward_of<bfloat16>(params, exact, stream);
  } else {
    forward_of<float16>(params, exact, stream);
  }
}

}  // namespace diffattn::cuda::sm80
