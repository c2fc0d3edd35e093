// SPDX-License-Identifier: Apache-2.0
//
// What an additive mask adds to the scores of a warp's tile, through shared memory: read along the
// columns, used as the matrix instructions leave the scores.
#pragma once

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/async_copy.cuh"

namespace diffattn::cuda::sm80 {

inline constexpr int kBiasPitch = 40;  // floats; 8 more keep quads' loads off the same banks

/// `load_bias` of a mask of Ms.
template <int kRows, class M>
__device__ inline void load_bias_of(float* tile, const HeadMask& mask, int m0, int n0) {
  constexpr int kAtOnce = kRows == 16 ? 16 : 8;  // rows whose numbers are under way together
  const int lane = ptx::reread_thread() % kWarpSize;
  const Sequence& seq = mask.seq;
  const MaskStrides& strides = mask.shape.mask.strides;
  // What does not exist is read from where something does, and not used.
  const M* const column = static_cast<const M*>(mask.shape.mask.data) + mask.head +
                          min(n0 + lane, seq.seq_k - 1) * strides.column;
#pragma unroll 1
  for (int row = 0; row < kRows; row += kAtOnce) {
    M bias[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      bias[i] = column[min(m0 + row + i, seq.seq_q - 1) * strides.row];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int m = m0 + row + i, n = n0 + lane;
      const bool inside = m < seq.seq_q && n >= seq.first_visible(m) && n < seq.end_visible(m);
      tile[(row + i) * kBiasPitch + lane] = inside ? bias_to_base_2(widen(bias[i])) : -INFINITY;
    }
  }
}

/// May rows of 32 columns from n0 on be read 16 bytes at a time?
template <class M>
__device__ inline bool has_chunks(const HeadMask& mask, int n0) {
  const MaskStrides& strides = mask.shape.mask.strides;
  const M* const first = static_cast<const M*>(mask.shape.mask.data) + mask.head + n0;
  return strides.column == 1 && reinterpret_cast<uintptr_t>(first) % 16 == 0 &&
         strides.row * static_cast<int64_t>(sizeof(M)) % 16 == 0 && n0 + 32 <= mask.seq.seq_k;
}

/// `load_bias_of` where they may: a lane has neighbours of a row.
template <int kRows, class M>
__device__ inline void load_bias_chunks(float* tile, const HeadMask& mask, int m0, int n0) {
  constexpr int kColumns = 16 / sizeof(M), kStep = kColumns;  // rows that a warp reads together
  constexpr int kAtOnce = kRows / kStep < 4 ? kRows / kStep : 4;
  const int lane = ptx::reread_thread() % kWarpSize;
  const int column = lane % (kWarpSize / kStep) * kColumns;
  const Sequence& seq = mask.seq;
  const M* const from = static_cast<const M*>(mask.shape.mask.data) + mask.head + n0 + column;
#pragma unroll 1
  for (int row = lane / (kWarpSize / kStep); row < kRows; row += kAtOnce * kStep) {
    union Chunk {
      uint4 words;
      M biases[kColumns];
    } chunks[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int m = min(m0 + row + i * kStep, seq.seq_q - 1);
      chunks[i].words =
          __ldg(reinterpret_cast<const uint4*>(from + m * mask.shape.mask.strides.row));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int m = m0 + row + i * kStep;
      const int begin = seq.first_visible(m) - n0 - column;
      const int end = (m < seq.seq_q ? seq.end_visible(m) : 0) - n0 - column;
      float x[kColumns];
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        const float bias = bias_to_base_2(widen(chunks[i].biases[k]));
        x[k] = k >= begin && k < end ? bias : -INFINITY;
      }
      float* const to = tile + (row + i * kStep) * kBiasPitch + column;
#pragma unroll
      for (int k = 0; k < kColumns; k += 4) {
        *reinterpret_cast<float4*>(to + k) = {x[k], x[k + 1], x[k + 2], x[k + 3]};
      }
    }
  }
}

/// Has what `load_bias` reads for kRows rows and kColumns columns on its way to the nearest cache,
/// by copies of a few bytes to `place` [kRows * kColumns / 8], which nobody reads.
template <int kRows, int kColumns, int kThreads>
__device__ inline void touch_bias(float* place, const HeadMask& mask, int m0, int n0) {
  constexpr int kSector = 32;  // bytes
  const Mask& all = mask.shape.mask;
  const Sequence& seq = mask.seq;
  if (all.strides.column != 1 || all.dtype == Dtype::kFloat64) return;
  const int thread = ptx::reread_thread();
  const int element = all.dtype == Dtype::kFloat32 ? 4 : 2, step = kSector / element;
#pragma unroll 1
  for (int i = thread; i < kRows * kColumns / step; i += kThreads) {
    const int m = min(m0 + i / (kColumns / step), seq.seq_q - 1);
    const int n = min(n0 + i % (kColumns / step) * step, seq.seq_k - 1);
    const auto at =
        reinterpret_cast<uintptr_t>(all.data) + (mask.head + m * all.strides.row + n) * element;
    ptx::copy_4_partly(ptx::smem_address(place + i),
                       reinterpret_cast<const void*>(at & ~uintptr_t{3}), element);
  }
}

/// tile [kRows, kBiasPitch] = biases of rows from m0 and 32 columns from n0 on, base 2; -inf where
/// a row may not see. Seen by the warp.
template <int kRows>
__device__ inline void load_bias(float* tile, const HeadMask& mask, int m0, int n0) {
  __syncwarp();  // nobody reads the last ones any more
  const auto load = [&]<class M>(M) {
    if (sizeof(M) <= 4 && has_chunks<M>(mask, n0)) {
      if constexpr (sizeof(M) <= 4) load_bias_chunks<kRows, M>(tile, mask, m0, n0);
    } else {
      load_bias_of<kRows, M>(tile, mask, m0, n0);
    }
  };
  switch (mask.shape.mask.dtype) {
    case Dtype::kFloat64: load(double{}); break;
    case Dtype::kFloat32: load(float{}); break;
    case Dtype::kBFloat16: load(bfloat16{}); break;
    case Dtype::kFloat16: load(float16{}); break;
  }
  __syncwarp();  // they are there
}

/// s [16, 8 kN8] += biases of a tile's first 16 rows; -inf replaces a NaN.
template <int kN8>
__device__ inline void add_bias(float (&s)[kN8][4], const float* tile) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float* const row = tile + (r * 8 + lane / 4) * kBiasPitch + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kN8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float bias = row[j * 8 + e];
        float& x = s[j][2 * r + e];
        x = bias == -INFINITY ? bias : x + bias;
      }
    }
  }
}

}  // namespace diffattn::cuda::sm80
