// SPDX-License-Identifier: Apache-2.0
//
// The last kernels of a backward. If the pass over rows or the main kernel set the flag
// `needs_repair`, they recompute dq, dk and dv of the whole problem with the sm80
// algorithm; otherwise they read the flag and end. The flag stands for cases that the main kernel
// cannot handle: hidden values that are not finite, |lse| above kMaxLse, and both signs of lambda
// in one unit. Each block computes the tiles blockIdx.x, blockIdx.x + gridDim.x, ...
#pragma once

#include "kernels/cuda/sm80/backward/keys.cuh"
#include "kernels/cuda/sm80/backward/launch.cuh"
#include "kernels/cuda/sm80/backward/queries.cuh"

namespace diffattn::cuda::sm90 {

inline constexpr unsigned kRepairBlocks = 264;  // two per multiprocessor of an H200

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, 2)
    repair_keys_kernel(const __grid_constant__ sm80::BackwardArguments<T> args,
                       const int* needs_repair, int64_t blocks, int tiles) {
  extern __shared__ __align__(128) char smem[];
  if (*needs_repair == 0) return;
  for (int64_t i = blockIdx.x; i < blocks; i += gridDim.x) {
    sm80::BackwardKeys<T, Config>{args, smem, WorkTile(i, args.shape.kv_heads, tiles)}.run();
    __syncthreads();  // all threads are done with shared memory before the next tile writes it
  }
}

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, 2)
    repair_queries_kernel(const __grid_constant__ sm80::BackwardArguments<T> args,
                          const int* needs_repair, int64_t blocks, int tiles) {
  extern __shared__ __align__(128) char smem[];
  if (*needs_repair == 0) return;
  for (int64_t i = blockIdx.x; i < blocks; i += gridDim.x) {
    sm80::BackwardQueries<T, Config>{args, smem, WorkTile(i, args.shape.heads, tiles)}.run();
    __syncthreads();  // all threads are done with shared memory before the next tile writes it
  }
}

}  // namespace diffattn::cuda::sm90
