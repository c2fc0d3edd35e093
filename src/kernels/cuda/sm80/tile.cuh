// SPDX-License-Identifier: Apache-2.0
//
// Tiles of 16-bit elements in shared memory and the matrix products of one warp over them:
//
//   multiply_transposed:  C [16 kM, kN] += A B^T   A and B from tiles (ldmatrix)
//   multiply:             C [16 kM, kN] += A B     A from registers, B from a tile
//
// with mma.sync.m16n8k16 and C in float. A tile [rows, kCols] consists of 16-byte chunks. Chunk c
// of row r lies at slot c ^ swizzle(r), so that the eight rows of an 8x8 ldmatrix fall into
// different banks.
#pragma once

#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/ptx/async_copy.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace diffattn::cuda::sm80 {

inline constexpr int kChunk = 8;  // elements in 16 bytes

/// The accumulator of one warp, [16 kM, 8 kN8], as C fragments (layout in ptx/mma.cuh).
template <int kM, int kN8>
using Accumulator = float[kM][kN8][4];

template <int kCols>
struct TileLayout {
  static_assert(kCols % 32 == 0);
  static constexpr int kChunks = kCols / kChunk;

  // Number of slots that the swizzle permutes. Rows whose length is an odd multiple of 64 bytes
  // start alternately at two different banks. Four slots, permuted by row / 2, are then enough.
  static constexpr int kSlots = kChunks % 8 == 0 ? 8 : 4;

  /// Returns the byte offset of chunk `fixed + odd` of a row. `fixed` is even and known at compile
  /// time, `odd` is 0 or 1. The swizzle permutes only fixed % kSlots, so the rest of `fixed`
  /// becomes an immediate offset of the load instruction.
  __device__ static uint32_t offset(int row, int fixed, int odd) {
    const int swizzle = kSlots == 8 ? row & 7 : (row >> 1) & 3;
    const int slot = (fixed % kSlots) ^ (odd ^ swizzle);
    return static_cast<uint32_t>(row * kChunks + slot) * 16 + fixed / kSlots * kSlots * 16;
  }
  __device__ static uint32_t offset(int row, int chunk) {
    return offset(row, chunk & ~1, chunk & 1);
  }
  /// Returns the address of chunk `fixed + odd` of a row, given the address `first` of chunk `odd`.
  /// `fixed` is even and known at compile time. Tiles are aligned to 128 bytes, so XOR on the
  /// address does the whole swizzle, and one register serves all chunks of a row.
  __device__ static uint32_t along(uint32_t first, int fixed) {
    return (first ^ (fixed % kSlots * 16)) + fixed / kSlots * kSlots * 16;
  }
};

/// The tensor rows that fill a tile. Loads write 0 to the tile outside rows [begin, end) and
/// columns [0, cols), and do not read the tensor there.
template <class T>
struct TileSource {
  const T* row0;   // address of tile row 0
  int64_t stride;  // elements from one row to the next
  int begin, end;  // tile rows to read
  int cols;        // tile columns to read
  bool aligned;    // rows may be read in 16-byte chunks
};

/// Fills one chunk of a tile: zeros if not `inside`, else the row's remaining `cols` > 0 elements,
/// padded with zeros. Uses cp.async if `aligned`. `any`: a valid address to pass with copies that
/// read nothing.
template <class T>
__device__ inline void load_chunk(uint32_t smem, const T* from, bool inside, int cols, bool aligned,
                                  const T* any) {
  if (aligned) {
    ptx::copy_16_or_zero(smem, inside ? from : any, inside);
    return;
  }
  alignas(16) T chunk_reg[kChunk];
  for (int e = 0; e < kChunk; ++e) {
    chunk_reg[e] = inside && e < cols ? from[e] : narrow<T>(0.0f);
  }
  ptx::store_16(smem, *reinterpret_cast<const uint4*>(chunk_reg));
}

/// Fills a tile with all kThreads threads of the block. Callers commit and wait for the copies.
template <int kRows, int kCols, int kThreads, class T>
__device__ inline void load_tile(T* tile, const TileSource<T>& source) {
  constexpr int kChunks = kCols / kChunk;
  for (int i = threadIdx.x; i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool inside = row >= source.begin && row < source.end && chunk * kChunk < source.cols;
    const T* from = source.row0 + row * source.stride + chunk * kChunk;
    load_chunk(ptx::smem_address(tile) + TileLayout<kCols>::offset(row, chunk), from, inside,
               source.cols - chunk * kChunk, source.aligned, source.row0);
  }
}

/// Fills a tile like load_tile, but with fewer registers, for code that rarely runs. The loop is
/// not unrolled, and it reads threadIdx.x again so that the compiler keeps no derived addresses in
/// registers.
template <int kRows, int kCols, int kThreads, class T>
__device__ inline void load_tile_rolled(T* tile, const TileSource<T>& source) {
  constexpr int kChunks = kCols / kChunk;
#pragma unroll 1
  for (int i = ptx::reread_thread(); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool inside = row >= source.begin && row < source.end && chunk * kChunk < source.cols;
    load_chunk(ptx::smem_address(tile) + TileLayout<kCols>::offset(row, chunk),
               source.row0 + row * source.stride + chunk * kChunk, inside,
               source.cols - chunk * kChunk, source.aligned, source.row0);
  }
}

/// Computes acc [16 kM, kN] += A B^T. A [16 kM, kK]: the rows of tile `a` from `a_row` on. B
/// [kN, kK]: tile `b`.
template <int kM, int kN, int kK, class T>
__device__ inline void multiply_transposed(Accumulator<kM, kN / 8>& acc, const T* a, int a_row,
                                           const T* b) {
  using Layout = TileLayout<kK>;
  constexpr int kStep = 16 * kK * 2;  // bytes of 16 rows
  const int lane = threadIdx.x % kWarpSize;
  const uint32_t a_first = ptx::smem_address(a) + Layout::offset(a_row + lane % 16, 0, lane / 16);
  const uint32_t b_first =
      ptx::smem_address(b) + Layout::offset(lane % 8 + lane / 16 * 8, 0, lane / 8 % 2);
#pragma unroll
  for (int k = 0; k < kK / 16; ++k) {
    uint32_t a_reg[kM][4];
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      ptx::load_matrix_x4(a_reg[i], Layout::along(a_first, k * 2) + i * kStep);
    }
#pragma unroll
    for (int j = 0; j < kN / 16; ++j) {
      uint32_t b_reg[4];
      ptx::load_matrix_x4(b_reg, Layout::along(b_first, k * 2) + j * kStep);
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        ptx::mma_m16n8k16<T>(acc[i][2 * j], a_reg[i], b_reg[0], b_reg[1]);
        ptx::mma_m16n8k16<T>(acc[i][2 * j + 1], a_reg[i], b_reg[2], b_reg[3]);
      }
    }
  }
}

/// Rounds C fragments to T and arranges them as A operands: two adjacent 16x8 fragments of C hold
/// the same entries in the same lanes as one 16x16 fragment of A.
template <class T, int kN8>
__device__ inline void round_to_operand(uint32_t (&a)[kN8 / 2][4], const float (&c)[kN8][4]) {
#pragma unroll
  for (int k = 0; k < kN8 / 2; ++k) {
    a[k][0] = pack<T>(c[2 * k][0], c[2 * k][1]);
    a[k][1] = pack<T>(c[2 * k][2], c[2 * k][3]);
    a[k][2] = pack<T>(c[2 * k + 1][0], c[2 * k + 1][1]);
    a[k][3] = pack<T>(c[2 * k + 1][2], c[2 * k + 1][3]);
  }
}

/// Computes acc [16 kM, kN] += A B, with A [16 kM, kK] in registers and B [kK, kN] in a tile.
template <int kM, int kN, int kK, class T>
__device__ inline void multiply(Accumulator<kM, kN / 8>& acc, const uint32_t (&a)[kM][kK / 16][4],
                                const T* b) {
  using Layout = TileLayout<kN>;
  const int lane = threadIdx.x % kWarpSize;
  const uint32_t b_first = ptx::smem_address(b) + Layout::offset(lane % 16, 0, lane / 16);
#pragma unroll
  for (int k = 0; k < kK / 16; ++k) {
#pragma unroll
    for (int j = 0; j < kN / 16; ++j) {
      uint32_t b_reg[4];
      ptx::load_matrix_x4_transposed(b_reg, Layout::along(b_first, j * 2) + k * 16 * kN * 2);
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        ptx::mma_m16n8k16<T>(acc[i][2 * j], a[i][k], b_reg[0], b_reg[1]);
        ptx::mma_m16n8k16<T>(acc[i][2 * j + 1], a[i][k], b_reg[2], b_reg[3]);
      }
    }
  }
}

/// Computes the same product as `multiply`, but skips zero entries of A. Callers use it if a row of
/// B that is hidden from some rows of A holds an infinity or a NaN: there A is 0, and 0 * inf would
/// be NaN. It is slow and rarely runs. It must be inlined, because a call would move the
/// accumulators to local memory.
template <int kM, int kN, int kK, class T>
__device__ inline void multiply_skipping_zeros(Accumulator<kM, kN / 8>& acc,
                                               const uint32_t (&a)[kM][kK / 16][4], const T* b) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll 1
  for (int n = 0; n < kK; ++n) {  // row n of B
    const int owner = lane / 4 * 4 + n % 8 / 2;
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      uint32_t low = 0, high = 0;  // packed pairs of A with (g, n) and with (g + 8, n)
#pragma unroll
      for (int k8 = 0; k8 < kK / 8; ++k8) {
        // Select by mask, because registers cannot be indexed at run time.
        const uint32_t chosen = k8 == n / 8 ? 0xffffffffu : 0u;
        low |= a[i][k8 / 2][k8 % 2 * 2] & chosen;
        high |= a[i][k8 / 2][k8 % 2 * 2 + 1] & chosen;
      }
      const float2 top = unpack<T>(__shfl_sync(0xffffffffu, low, owner));
      const float2 bottom = unpack<T>(__shfl_sync(0xffffffffu, high, owner));
      const float a_top = n % 2 == 0 ? top.x : top.y, a_bottom = n % 2 == 0 ? bottom.x : bottom.y;
#pragma unroll
      for (int j = 0; j < kN / 8; ++j) {
        const char* at = reinterpret_cast<const char*>(b) + TileLayout<kN>::offset(n, j);
        const float2 x = unpack<T>(reinterpret_cast<const uint32_t*>(at)[lane % 4]);
        if (a_top != 0.0f) {
          acc[i][j][0] += a_top * x.x;
          acc[i][j][1] += a_top * x.y;
        }
        if (a_bottom != 0.0f) {
          acc[i][j][2] += a_bottom * x.x;
          acc[i][j][3] += a_bottom * x.y;
        }
      }
    }
  }
}

/// True if this thread's chunks of a tile hold an infinity or a NaN. Callers combine the results of
/// all kThreads threads with __syncthreads_or.
template <int kRows, int kCols, int kThreads, class T>
__device__ inline bool has_non_finite(const T* tile) {
  const uint4* const chunks = reinterpret_cast<const uint4*>(tile);
  uint32_t found = 0;
#pragma unroll 2
  for (int i = threadIdx.x; i < kRows * kCols / kChunk; i += kThreads) {
    const uint4 x = chunks[i];
    found |= non_finite_signs<T>(x.x) | non_finite_signs<T>(x.y) | non_finite_signs<T>(x.z) |
             non_finite_signs<T>(x.w);
  }
  return (found & kSigns) != 0;
}

}  // namespace diffattn::cuda::sm80
