// SPDX-License-Identifier: Apache-2.0
//
// Float tiles of the simt kernels. The 256 threads form a 16 x 16 grid. Thread (ty, tx) owns rows
// ty and ty + 16 of every 32-row tile. In a tile of scores it owns columns tx and tx + 16; in a
// wide accumulator it owns columns 4 tx to 4 tx + 3 of every 64.
#pragma once

#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/problem.cuh"

namespace diffattn::cuda::simt {

inline constexpr int kThreads = 256;
inline constexpr int kBlock = 32;  // rows and columns of a tile of scores
inline constexpr int kMaxWidth = 256;
inline constexpr int kScorePitch = kBlock + 1;  // floats; odd, so that a column covers all banks

/// Returns the floats from one row to the next in a tile of `width` columns. The extra 4 shift
/// adjacent rows by 4 banks, so that 16-byte loads of 8 rows hit 32 different banks.
__host__ __device__ constexpr int pitch_of(int width) { return (width + 3) / 4 * 4 + 4; }

using Scores = float[2][2];                // rows ty + 16 i, columns tx + 16 j
using Wide = float[2][kMaxWidth / 64][4];  // rows ty + 16 i, columns 64 c + 4 tx + e

struct ThreadPosition {
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
};

/// Loads kBlock rows of one head to tile [kBlock, pitch] in float; row0 is the address of the first
/// one. Rows outside [begin, end) and columns from `width` to the next multiple of 4 become 0.
template <class T>
__device__ inline void load_tile(float* tile, const T* row0, int64_t stride, int begin, int end,
                                 int width, int pitch) {
  const int row = threadIdx.x / 8;  // 8 threads a row, 4 columns each
  const bool inside = row >= begin && row < end;
  const T* const from = row0 + row * stride;
  for (int c = threadIdx.x % 8 * 4; c < width; c += 32) {
    float4 x = {0.0f, 0.0f, 0.0f, 0.0f};
    if (inside) {
      x.x = widen(from[c]);
      if (c + 1 < width) x.y = widen(from[c + 1]);
      if (c + 2 < width) x.z = widen(from[c + 2]);
      if (c + 3 < width) x.w = widen(from[c + 3]);
    }
    *reinterpret_cast<float4*>(tile + row * pitch + c) = x;
  }
}

/// s = x y^T over `width` columns. Each score has four partial sums, which round less than one long
/// sum and hide the latency of the additions.
__device__ inline void dot_rows(Scores& s, const float* x, const float* y, int width, int pitch) {
  const ThreadPosition at;
  float4 sum[2][2] = {};
#pragma unroll 2
  for (int c = 0; c < width; c += 4) {
    float4 x_reg[2], y_reg[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x_reg[i] = *reinterpret_cast<const float4*>(x + (at.ty + 16 * i) * pitch + c);
      y_reg[i] = *reinterpret_cast<const float4*>(y + (at.tx + 16 * i) * pitch + c);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        sum[i][j].x += x_reg[i].x * y_reg[j].x;
        sum[i][j].y += x_reg[i].y * y_reg[j].y;
        sum[i][j].z += x_reg[i].z * y_reg[j].z;
        sum[i][j].w += x_reg[i].w * y_reg[j].w;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      s[i][j] = (sum[i][j].x + sum[i][j].y) + (sum[i][j].z + sum[i][j].w);
    }
  }
}

/// Stores this thread's scores to a shared tile [kBlock, kScorePitch].
__device__ inline void store_scores(float* tile, const Scores& s) {
  const ThreadPosition at;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) tile[(at.ty + 16 * i) * kScorePitch + at.tx + 16 * j] = s[i][j];
  }
}

/// acc += a b, with a [kBlock, kBlock] a tile of scores and b [kBlock, width]. Skips zeros of a,
/// because a is 0 where a row may not see a column, and that row of b may hold NaN.
__device__ inline void accumulate(Wide& acc, const float* a, const float* b, int width, int pitch) {
  const ThreadPosition at;
  for (int n = 0; n < kBlock; ++n) {
    const float a_reg[2] = {a[at.ty * kScorePitch + n], a[(at.ty + 16) * kScorePitch + n]};
#pragma unroll
    for (int c = 0; c < kMaxWidth / 64; ++c) {
      if (64 * c + 4 * at.tx >= width) break;
      const float4 x = *reinterpret_cast<const float4*>(b + n * pitch + 64 * c + 4 * at.tx);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (a_reg[i] == 0.0f) continue;
        acc[i][c][0] += a_reg[i] * x.x;
        acc[i][c][1] += a_reg[i] * x.y;
        acc[i][c][2] += a_reg[i] * x.z;
        acc[i][c][3] += a_reg[i] * x.w;
      }
    }
  }
}

/// Calls f(i, column, value) for every column below `width` that this thread owns.
template <class F>
__device__ inline void for_each_column(Wide& acc, int width, F f) {
  const ThreadPosition at;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int c = 0; c < kMaxWidth / 64; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = 64 * c + 4 * at.tx + e;
        if (column < width) f(i, column, acc[i][c][e]);
      }
    }
  }
}

/// Return the sum and the maximum over the 16 threads that share a row.
__device__ inline float row_sum(float x) {
  for (int offset = 8; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}
__device__ inline float row_max(float x) {
  for (int offset = 8; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  }
  return x;
}

}  // namespace diffattn::cuda::simt
