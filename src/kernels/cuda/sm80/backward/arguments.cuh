// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/backward/rows.cuh"
#include "kernels/cuda/problem.cuh"

namespace diffattn::cuda::sm80 {

/// Kernel arguments of the sm80 backward. Gradients that the caller does not want have null data.
template <class T>
struct BackwardArguments {
  Shape shape;
  Rows<const T> q1, q2;  // [B, M, H, D]
  Rows<const T> k1, k2;  // [B, N, Hkv, D]
  Rows<const T> v;       // [B, N, Hkv, Dv]
  Rows<const T> d_o;     // [B, M, H, Dv]: gradient of O
  RowState state;
  float scale, scale2;
  float scale_log2, scale2_log2;                      // scale log2(e) of map 1 and map 2
  bool q_aligned, k_aligned, v_aligned, d_o_aligned;  // rows may be read in 16-byte chunks
  Rows<T> dq1, dq2;                                   // [B, M, H, D]
  Rows<T> dk1, dk2;                                   // [B, N, Hkv, D]
  Rows<T> dv;                                         // [B, N, Hkv, Dv]
};

/// Stores a warp's C fragments, times `scale`, to rows [row, row + 16) of a tensor, up to end_row.
/// Stores two adjacent columns as one word if the address allows it.
template <int kN8, class T>
__device__ inline void store_fragments(const float (&c)[kN8][4], float scale, T* first_row,
                                       int64_t stride, int row, int end_row, int width) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = row + r * 8 + lane / 4;
    if (at >= end_row) continue;
    T* const out = first_row + at * stride;
    const bool words = reinterpret_cast<uintptr_t>(out) % 4 == 0;
#pragma unroll
    for (int j = 0; j < kN8; ++j) {
      const int col = j * 8 + lane % 4 * 2;
      const float x = c[j][2 * r] * scale, y = c[j][2 * r + 1] * scale;
      if (words && col + 1 < width) {
        *reinterpret_cast<uint32_t*>(out + col) = pack<T>(x, y);
      } else {
        if (col < width) out[col] = narrow<T>(x);
        if (col + 1 < width) out[col + 1] = narrow<T>(y);
      }
    }
  }
}

/// Transposes the 4x4 words of a quad: word i of lane c becomes word c of lane i.
__device__ inline void transpose_words(uint32_t (&x)[4]) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = (threadIdx.x & bit) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      const uint32_t low = x[i], high = x[i | bit];
      const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? low : high, bit);
      x[i] = upper ? got : low;
      x[i | bit] = upper ? high : got;
    }
  }
}

/// Does the same with 16-byte stores, for rows of exactly 8 kN8 elements with aligned chunks. The
/// whole warp must call it.
template <int kN8, class T>
__device__ inline void store_aligned_fragments(const float (&c)[kN8][4], float scale, T* first_row,
                                               int64_t stride, int row, int end_row) {
  static_assert(kN8 % 4 == 0);
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = row + r * 8 + lane / 4;
    T* const out = first_row + at * stride + lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < kN8; j += 4) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = pack<T>(c[j + i][2 * r] * scale, c[j + i][2 * r + 1] * scale);
      }
      transpose_words(words);
      if (at >= end_row) continue;
      *reinterpret_cast<uint4*>(out + j * 8) = {words[0], words[1], words[2], words[3]};
    }
  }
}

}  // namespace diffattn::cuda::sm80
