// SPDX-License-Identifier: Apache-2.0
//
// The last kernel of a forward. It recomputes the 64-row tiles that the main kernel marked, with
// the sm80 algorithm, which keeps a running row maximum and lets no value of a hidden
// column reach a row. If nothing is marked, the kernel reads the marks, [heads, marks_per_head]
// bytes, and ends. Each block repairs its marked tiles one by one.
#pragma once

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm80/forward/launch.cuh"
#include "kernels/cuda/sm90/forward/arguments.cuh"
#include "kernels/cuda/sm90/forward/config.h"

namespace diffattn::cuda::sm90 {

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    repair_kernel(const __grid_constant__ sm80::ForwardArguments<T> args, ForwardState state,
                  int64_t marks) {
  static_assert(Config::kBlockM == kConsumerRows);
  extern __shared__ __align__(128) char smem[];
  const int32_t* const cu_seqlens = args.shape.cu_seqlens_q;
  ptx::wait_for_previous_kernel();
  // Block b reads the marks b, b + gridDim.x, ...
  const auto index = [&](int64_t i) { return i * gridDim.x + blockIdx.x; };
  const auto marked = [&](int64_t i) {
    return index(i) < marks && state.repair_marks[index(i)] != 0;
  };
  for (int64_t first = 0; index(first) < marks; first += Config::kThreads) {
    if (__syncthreads_or(marked(first + threadIdx.x)) == 0) continue;
    for (int64_t i = first; i < first + Config::kThreads; ++i) {
      if (!marked(i)) continue;
      WorkTile work(0, 1, 1);
      const int head = static_cast<int>(index(i) / state.marks_per_head);
      work.tile = static_cast<int>(index(i) % state.marks_per_head);
      work.b = head / args.shape.heads;
      work.h = head % args.shape.heads;
      if (cu_seqlens != nullptr) {
        work.b = sequence_at<kConsumerRows>(cu_seqlens, args.shape.batch, work.tile);
        work.tile -= first_tile_index<kConsumerRows>(cu_seqlens, work.b);
      }
      sm80::Forward<T, Config>{args, smem, work}.run();
      __syncthreads();  // all threads are done with shared memory before the next tile writes it
    }
  }
}

}  // namespace diffattn::cuda::sm90
