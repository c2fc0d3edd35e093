// SPDX-License-Identifier: Apache-2.0
//
// Float sums of dq1 and dq2 in global memory, to which many blocks add atomically. They are stored
// in the order of the mma accumulator fragments, so that one atomic instruction of a warp covers
// contiguous memory. Code for sm_90 adds four floats per lane at once, code for sm_80 one.
// finish_dq_kernel scales and rounds the sums to dq1 and dq2.
#pragma once

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/problem.cuh"
#include "kernels/cuda/ptx/atomic_add.cuh"
#include "kernels/cuda/sm80/backward/arguments.cuh"

namespace diffattn::cuda::sm80 {

/// The sums [H, units, 2 maps, D / 8, 4, 32 lanes] (code for sm_90: [.., 32 lanes, 4]). A unit is
/// 16 rows of one sequence. The units of sequence b begin at first(b) = (its first row) / 16 + b:
/// sequences never share a unit, and no prefix sum over their lengths is needed.
struct DqSums {
  float* data;
  int units;       // units per head
  int* next_tile;  // counts the tiles that blocks of plain.cuh have taken; starts at 0

  static constexpr int kRows = 16;
#if __CUDA_ARCH__ >= 900
  static constexpr int kPerLane = 4;
#else
  static constexpr int kPerLane = 1;
#endif

  __device__ static int first(const Shape& shape, const Sequence& seq, int b) {
    const int64_t row =
        shape.cu_seqlens_q == nullptr ? static_cast<int64_t>(b) * shape.seq_q : seq.q_begin;
    return static_cast<int>(row / kRows) + b;
  }
  /// Returns this lane's address in fragment 0 of a unit.
  template <int kD>
  __device__ float* at(int h, int unit, int map) const {
    const int64_t number = (static_cast<int64_t>(h) * units + unit) * 2 + map;
    return data + number * (kRows * kD) + threadIdx.x % 32 * kPerLane;
  }
  /// Returns the address of this lane's entry e of fragment j; `at` is the result of at().
  __device__ static float* entry(float* at, int j, int e) {
    return at + j * 4 * kWarpSize + (kPerLane == 4 ? e : e * kWarpSize);
  }
  __device__ static void add(float* at, int j, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
    ptx::atomic_add_4(entry(at, j, 0), x);
#else
#pragma unroll
    for (int e = 0; e < 4; ++e) atomicAdd(entry(at, j, e), x[e]);
#endif
  }
};

/// Computes dq1 = scale * sums and dq2 = scale2 * sums, rounded to T, with one warp per unit and
/// map. kValue is unused: it gives each generated source file its own kernel, because files
/// compiled for different architectures lay the sums out differently.
template <class T, int kD, int kValue>
__global__ void __launch_bounds__(256)
    finish_dq_kernel(const __grid_constant__ BackwardArguments<T> args, DqSums sums, int tiles) {
  const int64_t warp = (blockIdx.x * int64_t{256} + threadIdx.x) / 32;
  const int map = static_cast<int>(warp % 2);
  const WorkTile work(warp / 2, args.shape.heads, tiles);
  if (work.b >= args.shape.batch) return;
  const Sequence seq = args.shape.sequence(work.b);
  const Rows<T>& out = map == 0 ? args.dq1 : args.dq2;
  const int m0 = work.tile * DqSums::kRows;
  if (m0 >= seq.seq_q || out.data == nullptr) return;
  float* const from = sums.at<kD>(work.h, DqSums::first(args.shape, seq, work.b) + work.tile, map);
  float dq[kD / 8][4];
#pragma unroll
  for (int j = 0; j < kD / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) dq[j][e] = *DqSums::entry(from, j, e);
  }
  const float scale = map == 0 ? args.scale : args.scale2;
  T* const first = out.at(work.b, seq.q_begin, work.h);
  const int width = args.shape.head_dim;
  if (width == kD && reinterpret_cast<uintptr_t>(first) % 16 == 0 && out.seq_stride % 8 == 0) {
    store_aligned_fragments(dq, scale, first, out.seq_stride, m0, seq.seq_q);
  } else {
    store_fragments(dq, scale, first, out.seq_stride, m0, seq.seq_q, width);
  }
}

}  // namespace diffattn::cuda::sm80
