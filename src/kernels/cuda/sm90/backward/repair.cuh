// SPDX-License-Identifier: Apache-2.0
//
// The last kernels of a backward: where the pass over rows or the main kernel found what the latter
// cannot do (values that are not finite behind a mask, enormous scores, both signs of lambda in one
// unit), all gradients again by the portable algorithm. Otherwise they read a word and end.
#pragma once

#include "kernels/cuda/sm80/backward/keys.cuh"
#include "kernels/cuda/sm80/backward/launch.cuh"
#include "kernels/cuda/sm80/backward/queries.cuh"

namespace diffattn::cuda::sm90 {

inline constexpr unsigned kRepairBlocks = 264;  // two for each multiprocessor of an H200

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, 2)
    repair_keys_kernel(const __grid_constant__ sm80::BackwardArguments<T> args,
                       const int* recompute, int64_t blocks, int tiles) {
  extern __shared__ __align__(128) char smem[];
  if (*recompute == 0) return;
  for (int64_t i = blockIdx.x; i < blocks; i += gridDim.x) {
    sm80::BackwardKeys<T, Config>{args, smem, BlockPlace(i, args.shape.kv_heads, tiles)}.run();
    __syncthreads();  // shared memory may be written again
  }
}

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, 2)
    repair_queries_kernel(const __grid_constant__ sm80::BackwardArguments<T> args,
                          const int* recompute, int64_t blocks, int tiles) {
  extern __shared__ __align__(128) char smem[];
  if (*recompute == 0) return;
  for (int64_t i = blockIdx.x; i < blocks; i += gridDim.x) {
    sm80::BackwardQueries<T, Config>{args, smem, BlockPlace(i, args.shape.heads, tiles)}.run();
    __syncthreads();  // shared memory may be written again
  }
}

}  // namespace diffattn::cuda::sm90
