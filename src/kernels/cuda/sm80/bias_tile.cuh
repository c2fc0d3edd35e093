// SPDX-License-Identifier: Apache-2.0
//
// Biases of an additive mask for one warp's tile of scores, staged in shared memory: lanes read the
// mask along its columns, then each lane fetches the entries of its accumulator fragment.
//
//   load_bias:      tile [kRows, 32] = mask log2(e), or -inf where the row may not see the column
//   add_bias:       s [16, 8 kN8] += tile
//   prefetch_bias:  prefetches the mask into L1 for a later load_bias
#pragma once

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/mask.cuh"
#include "kernels/cuda/ptx/async_copy.cuh"

namespace diffattn::cuda::sm80 {

// Floats from one tile row to the next: 32 columns, and 8 more so that the quads of a warp read
// different banks.
inline constexpr int kBiasPitch = 40;

/// Implements `load_bias` for a mask with elements M and any strides; a lane loads one column.
template <int kRows, class M>
__device__ inline void load_bias_of(float* tile, const HeadMask& mask, int m0, int n0) {
  constexpr int kAtOnce = kRows == 16 ? 16 : 8;  // rows whose loads are in flight together
  const int lane = ptx::reread_thread() % kWarpSize;
  const Sequence& seq = mask.seq;
  const MaskStrides& strides = mask.shape.mask.strides;
  // Lanes and rows beyond the sequence read its last column or row; the store discards the value.
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

/// True if columns [n0, n0 + 32) of every row can be read in aligned 16-byte chunks.
template <class M>
__device__ inline bool has_chunks(const HeadMask& mask, int n0) {
  const MaskStrides& strides = mask.shape.mask.strides;
  const M* const first = static_cast<const M*>(mask.shape.mask.data) + mask.head + n0;
  return strides.column == 1 && reinterpret_cast<uintptr_t>(first) % 16 == 0 &&
         strides.row * static_cast<int64_t>(sizeof(M)) % 16 == 0 && n0 + 32 <= mask.seq.seq_k;
}

/// Implements `load_bias` with 16-byte loads, if `has_chunks`: a lane loads adjacent columns.
template <int kRows, class M>
__device__ inline void load_bias_chunks(float* tile, const HeadMask& mask, int m0, int n0) {
  // Columns of a chunk. A row has 32 / kColumns chunks, so a warp loads kStep = kColumns rows.
  constexpr int kColumns = 16 / sizeof(M), kStep = kColumns;
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

/// Prefetches the biases of kRows rows and kColumns columns into L1 for `load_bias`: starts one
/// cp.async of 2 or 4 bytes per 32-byte sector. The copies go to `scratch` [kRows * kColumns / 8],
/// which nobody reads.
template <int kRows, int kColumns, int kThreads>
__device__ inline void prefetch_bias(float* scratch, const HeadMask& mask, int m0, int n0) {
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
    ptx::copy_4_partly(ptx::smem_address(scratch + i),
                       reinterpret_cast<const void*>(at & ~uintptr_t{3}), element);
  }
}

/// Fills tile [kRows, kBiasPitch] with the biases of rows [m0, m0 + kRows) and columns
/// [n0, n0 + 32) in base 2, or -inf where a row may not see a column. The calling warp loads and
/// reads the tile.
template <int kRows>
__device__ inline void load_bias(float* tile, const HeadMask& mask, int m0, int n0) {
  __syncwarp();  // all lanes have read the previous tile
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
  __syncwarp();  // the tile is complete
}

/// Adds a tile's first 16 rows to the fragments s [16, 8 kN8]. A bias of -inf replaces the score,
/// so that a NaN score of a hidden column disappears.
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
