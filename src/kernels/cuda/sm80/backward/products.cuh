// SPDX-License-Identifier: Apache-2.0
//
// Products C [16 kM, 8 kN8] += A B of one warp, with both operands in shared-memory tiles. A tile
// may hold an operand with the summed index k along its rows (KMajor) or with one row per k
// (MnMajor).
#pragma once

#include "kernels/cuda/sm80/tile.cuh"

namespace diffattn::cuda::sm80 {

/// An operand whose tile rows run along the summed index.
template <int kCols>
struct KMajor {
  uint32_t first;  // this lane's ldmatrix address

  /// Operand A: row i of the result is row `row` + i of the tile.
  __device__ static KMajor a(uint32_t tile, int row, int lane) {
    return {tile + TileLayout<kCols>::offset(row + lane % 16, 0, lane / 16)};
  }
  /// Operand B: column j of the result is row `row` + j of the tile.
  __device__ static KMajor b(uint32_t tile, int row, int lane) {
    return {tile + TileLayout<kCols>::offset(row + lane % 8 + lane / 16 * 8, 0, lane / 8 % 2)};
  }
  template <class T>
  __device__ static KMajor a(const T* tile, int row) {
    return a(ptx::smem_address(tile), row, threadIdx.x % kWarpSize);
  }
  template <class T>
  __device__ static KMajor b(const T* tile, int row) {
    return b(ptx::smem_address(tile), row, threadIdx.x % kWarpSize);
  }
  /// Returns the same operand of the tile that begins `bytes` later; `bytes` is a multiple of 128.
  __device__ KMajor offset_by(uint32_t bytes) const { return {first + bytes}; }
  /// Loads fragment (i, k): 16 result rows (A) or columns (B) by 16 summed indices.
  __device__ void load(uint32_t (&reg)[4], int i, int k) const {
    ptx::load_matrix_x4(reg, TileLayout<kCols>::along(first, k * 2) + i * 16 * kCols * 2);
  }
};

/// An operand with one tile row per summed index.
template <int kCols>
struct MnMajor {
  uint32_t first;  // this lane's ldmatrix address

  /// Operand A: row i of the result is column `column` + i of the tile.
  __device__ static MnMajor a(uint32_t tile, int column, int lane) {
    return {tile +
            TileLayout<kCols>::offset(lane % 8 + lane / 16 * 8, column / kChunk + lane / 8 % 2)};
  }
  /// Operand B: column j of the result is column `column` + j of the tile.
  __device__ static MnMajor b(uint32_t tile, int column, int lane) {
    return {tile + TileLayout<kCols>::offset(lane % 16, column / kChunk + lane / 16)};
  }
  template <class T>
  __device__ static MnMajor a(const T* tile, int column) {
    return a(ptx::smem_address(tile), column, threadIdx.x % kWarpSize);
  }
  template <class T>
  __device__ static MnMajor b(const T* tile, int column) {
    return b(ptx::smem_address(tile), column, threadIdx.x % kWarpSize);
  }
  __device__ void load(uint32_t (&reg)[4], int i, int k) const {
    ptx::load_matrix_x4_transposed(reg,
                                   TileLayout<kCols>::along(first, i * 2) + k * 16 * kCols * 2);
  }
};

/// acc [16 kM, 8 kN8] += A B over kK summed entries.
template <class T, int kK, int kM, int kN8, class A, class B>
__device__ inline void add_tiles(Accumulator<kM, kN8>& acc, const A& a, const B& b) {
#pragma unroll
  for (int k = 0; k < kK / 16; ++k) {
    uint32_t a_reg[kM][4];
#pragma unroll
    for (int i = 0; i < kM; ++i) a.load(a_reg[i], i, k);
#pragma unroll
    for (int j = 0; j < kN8 / 2; ++j) {
      uint32_t b_reg[4];
      b.load(b_reg, j, k);
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        ptx::mma_m16n8k16<T>(acc[i][2 * j], a_reg[i], b_reg[0], b_reg[1]);
        ptx::mma_m16n8k16<T>(acc[i][2 * j + 1], a_reg[i], b_reg[2], b_reg[3]);
      }
    }
  }
}

/// Returns one entry of a tile as float.
template <int kCols, class T>
__device__ inline float tile_entry(const T* tile, int row, int column) {
  const char* const at =
      reinterpret_cast<const char*>(tile) + TileLayout<kCols>::offset(row, column / kChunk);
  return widen(reinterpret_cast<const T*>(at)[column % kChunk]);
}

/// Computes `add_tiles` but skips zero entries of A, for a B with infinities or NaN: 0 * inf would
/// be NaN in a row that may not see them. a(m, k) and b(k, n) return entries. Slow; rarely runs.
template <int kK, int kM, int kN8, class A, class B>
__device__ inline void add_tiles_skipping_zeros(Accumulator<kM, kN8>& acc, A a, B b) {
  const int lane = ptx::reread_thread() % kWarpSize;
#pragma unroll 1
  for (int k = 0; k < kK; ++k) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      const float low = a(i * 16 + lane / 4, k), high = a(i * 16 + lane / 4 + 8, k);
#pragma unroll
      for (int j = 0; j < kN8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float x = b(k, j * 8 + lane % 4 * 2 + e);
          if (low != 0.0f) acc[i][j][e] += low * x;
          if (high != 0.0f) acc[i][j][2 + e] += high * x;
        }
      }
    }
  }
}

}  // namespace diffattn::cuda::sm80
