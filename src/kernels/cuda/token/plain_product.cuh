// SPDX-License-Identifier: Apache-2.0
//
// The products of a generation step in float32, without tensor cores. A block computes one tile of
// 8 outputs for 8 rows, and its threads split the inner dimension:
//
//   (1) load the first weights into registers, before the previous kernel has ended
//   (2) wait for the previous kernel; multiply: acc [8 rows, 8 outputs] per thread
//   (3) sum the lanes' accumulators by exchanges, the warps' through shared memory
//   (4) each thread of the first warp finishes outputs g and g + 4 of a row: epilogue.cuh
#pragma once

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/token/arguments.cuh"
#include "kernels/cuda/token/epilogue.cuh"

namespace diffattn::cuda::token {

struct PlainConfig {
  static constexpr int kRows = 8, kN = 1;
  static constexpr int kPartTiles = 1;  // tiles of one sum of squares
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * kWarps;
};

/// A lane keeps the first or the last kKept of 2 kKept values, and adds those of the lane that
/// gives them away.
template <int kKept>
__device__ inline void exchange(float (&values)[64]) {
  constexpr int kOffset = kKept / 2;
  const bool upper = (threadIdx.x & kOffset) != 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const float given = upper ? values[i] : values[i + kKept];
    const float own = upper ? values[i + kKept] : values[i];
    values[i] = own + __shfl_xor_sync(0xffffffffu, given, kOffset);
  }
}

/// Sums 64 values over the warp. Lane l returns the sums of values 2 l and 2 l + 1.
__device__ inline float2 sum_over_lanes(float (&values)[64]) {
  exchange<32>(values);
  exchange<16>(values);
  exchange<8>(values);
  exchange<4>(values);
  exchange<2>(values);
  return {values[0], values[1]};
}

struct PlainSmem {
  const float* matrix[8];  // the weight rows of the tile
  float factors[PlainConfig::kRows];
  float sums[PlainConfig::kWarps][8 * PlainConfig::kRows];  // [warps, rows, outputs]
};

struct PlainProduct {
  static constexpr int kRows = PlainConfig::kRows, kWarps = PlainConfig::kWarps;
  static constexpr int kStep = PlainConfig::kThreads * 4;  // inner elements of a step of the block

  const ProductArguments<float>& args;
  PlainSmem& smem;
  const int tile, row0;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int rows = min(kRows, args.rows - row0);

  float4 weights[8];          // of the 8 outputs
  float acc[8 * kRows] = {};  // [rows, outputs]

  __device__ void run() {
    if (threadIdx.x < 8) smem.matrix[threadIdx.x] = args.weight_row(tile, threadIdx.x);
    __syncthreads();  // the weight rows are stored
    const int begin = 4 * static_cast<int>(threadIdx.x);
    load_weights(begin);  // (1)
    ptx::wait_for_previous_kernel();
    store_row_factors<kRows, PlainConfig::kThreads>(args, row0, rows, smem.factors);
#pragma unroll 1
    for (int k = begin; k < args.in; k += kStep) {  // (2)
      if (k > begin) load_weights(k);
      multiply(k);
    }
    *reinterpret_cast<float2*>(smem.sums[warp] + 2 * lane) = sum_over_lanes(acc);  // (3)
    __syncthreads();  // all warps have stored their sums and the rows' factors
    if (warp == 0) finish();
  }

  __device__ void load_weights(int k) {
    if (k >= args.in) return;
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      weights[g] = *reinterpret_cast<const float4*>(smem.matrix[g] + k);
    }
  }

  __device__ void multiply(int k) {
    const float* const a = args.a + int64_t{row0} * args.in + k;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) continue;
      const float4 x = __ldcg(reinterpret_cast<const float4*>(a + int64_t{r} * args.in));
#pragma unroll
      for (int g = 0; g < 8; ++g) {
        const float4& w = weights[g];
        acc[r * 8 + g] += x.x * w.x + x.y * w.y + (x.z * w.z + x.w * w.w);
      }
    }
  }

  /// Lane l finishes outputs l % 4 and l % 4 + 4 of row l / 4.
  __device__ void finish() const {
    const int pair = lane % 4, row = min(lane / 4, rows - 1);
    const bool exists = lane / 4 < rows;
    float y0 = 0.0f, y1 = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      y0 += smem.sums[w][row * 8 + pair];
      y1 += smem.sums[w][row * 8 + pair + 4];
    }
    const PairFinish<float> finish(args, args.epilogue, tile, pair);
    RowPlace<float> place;
    if (args.epilogue == Epilogues::kHeads) place = RowPlace<float>(args, row0 + row);
    RowInputs<float> in;
    finish.load_early(in, args, args.epilogue, row0 + row, place);
    finish.load_late(in, args, args.epilogue, row0 + row);
    const float factor = smem.factors[row];
    float squares = 0.0f;
    if (exists) {
      squares = finish.store(args, args.epilogue, row0 + row, in, y0 * factor, y1 * factor);
    }
    if (args.epilogue != Epilogues::kAdd) return;
    squares += __shfl_xor_sync(0xffffffffu, squares, 1);
    squares += __shfl_xor_sync(0xffffffffu, squares, 2);
    if (exists && pair == 0) {
      args.residual.squares[int64_t{row0 + row} * Residual::kMaxParts + tile] = squares;
    }
  }
};

__global__ void __launch_bounds__(PlainConfig::kThreads, 2)
    plain_product_kernel(const __grid_constant__ ProductArguments<float> args, int row_chunks) {
  __shared__ PlainSmem smem;
  ptx::launch_dependents();
  const int tile = static_cast<int>(blockIdx.x) / row_chunks;
  const int row0 = static_cast<int>(blockIdx.x) % row_chunks * PlainConfig::kRows;
  PlainProduct{args, smem, tile, row0}.run();
}

}  // namespace diffattn::cuda::token
