// SPDX-License-Identifier: Apache-2.0
//
// Launch of the simt forward, see forward.cuh.

#include "kernels/cuda/check.h"
#include "kernels/cuda/simt/forward.cuh"
#include "kernels/cuda/simt/launch.h"

namespace diffattn::cuda::simt {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(const __grid_constant__ ForwardArguments<T> args, int tiles) {
  extern __shared__ __align__(16) float simt_smem[];
  WorkTile work(blockIdx.x, args.shape.heads, tiles);
  work.tile = tiles - 1 - work.tile;  // last rows first: if causal, they see the most keys
  Forward<T>{args, simt_smem, work}.run();
}

template <class T>
void forward_of(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream) {
  const ForwardArguments<T> args = forward_arguments<T>(params, exact);
  const int bytes = forward_bytes(args.shape);
  const auto kernel = forward_kernel<T>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "simt forward: shared memory", params);
  const int64_t tiles = (params.seq_q + kBlock - 1) / kBlock;
  const auto blocks = static_cast<unsigned>(params.batch * params.heads * tiles);
  kernel<<<blocks, kThreads, bytes, stream>>>(args, static_cast<int>(tiles));
  check_launch("simt forward", params);
}

}  // namespace

void forward(const ForwardParams& params, const ExactOutputs& exact, cudaStream_t stream) {
  switch (params.dtype) {
    case Dtype::kBFloat16: return forward_of<bfloat16>(params, exact, stream);
    case Dtype::kFloat16: return forward_of<float16>(params, exact, stream);
    default: return forward_of<float>(params, exact, stream);
  }
}

}  // namespace diffattn::cuda::simt
