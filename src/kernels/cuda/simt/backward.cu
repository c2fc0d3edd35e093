// SPDX-License-Identifier: Apache-2.0
//
// Launches of the simt backward, see backward.cuh. The pass over queries always runs, because it
// computes the row factors for the pass over keys.

#include "kernels/cuda/check.h"
#include "kernels/cuda/simt/backward.cuh"
#include "kernels/cuda/simt/launch.h"

namespace diffattn::cuda::simt {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    backward_keys_kernel(const __grid_constant__ BackwardArguments<T> args, int tiles) {
  extern __shared__ __align__(16) float simt_smem[];
  const WorkTile work(blockIdx.x, args.shape.kv_heads, tiles);
  Backward<T>{args, simt_smem, work.b}.run_keys(work.h, work.tile);
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    backward_queries_kernel(const __grid_constant__ BackwardArguments<T> args, int tiles) {
  extern __shared__ __align__(16) float simt_smem[];
  const WorkTile work(blockIdx.x, args.shape.heads, tiles);
  Backward<T>{args, simt_smem, work.b}.run_queries(work.h, tiles - 1 - work.tile);
}

template <class T>
void launch(void (*kernel)(BackwardArguments<T>, int), const char* name,
            const BackwardArguments<T>& args, int64_t heads, int64_t rows,
            const BackwardParams& params, cudaStream_t stream) {
  const int64_t tiles = (rows + kBlock - 1) / kBlock;
  const auto blocks = static_cast<unsigned>(params.batch * heads * tiles);
  if (blocks == 0) return;
  const int bytes = backward_bytes(args.shape);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name,
        params);
  kernel<<<blocks, kThreads, bytes, stream>>>(args, static_cast<int>(tiles));
  check_launch(name, params);
}

template <class T>
void backward_of(const BackwardParams& params, const BackwardWorkspace& workspace,
                 cudaStream_t stream) {
  const BackwardArguments<T> args = backward_arguments<T>(params, workspace);
  launch<T>(backward_queries_kernel<T>, "simt backward over queries", args, params.heads,
            params.seq_q, params, stream);
  if (params.dk1 || params.dk2 || params.dv) {
    launch<T>(backward_keys_kernel<T>, "simt backward over keys", args, params.kv_heads,
              params.seq_k, params, stream);
  }
}

}  // namespace

void backward(const BackwardParams& params, const BackwardWorkspace& workspace,
              cudaStream_t stream) {
  switch (params.dtype) {
    case Dtype::kBFloat16: return backward_of<bfloat16>(params, workspace, stream);
    case Dtype::kFloat16: return backward_of<float16>(params, workspace, stream);
    default: return backward_of<float>(params, workspace, stream);
  }
}

}  // namespace diffattn::cuda::simt
