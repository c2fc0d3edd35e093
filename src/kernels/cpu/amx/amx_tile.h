// SPDX-License-Identifier: Apache-2.0
//
// The AMX micro-kernel: a 32 x 32 tile of fp32 sums of bf16 products,
//
//   c[i][j] += sum_k a[i, k] * b[k, j]       k counts operands of two bf16
//
// Tile registers 0 to 3 hold the sums, 4 and 5 rows of a, 6 and 7 columns of b. Each pass sums 16
// pairs with four TDPBF16PS (16 clocks each) and loads four tiles (17 to 18 clocks each from L1,
// docs/kernel_cpu.md).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/fma_tile.h"

namespace diffattn::cpu::amx {

/// The memory operand of LDTILECFG.
struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

/// All eight tile registers as 16 rows of 64 B. It is a constant because GCC's _tile_loadconfig
/// declares only 8 of its 64 bytes as read: stores to the rest of a local variable would be
/// dropped.
template <class Isa>
inline constexpr TileConfig kTileConfig{
    .palette = 1,
    .start_row = 0,
    .reserved = {},
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

template <class Isa>
struct AmxTile {
  using Vec = __m512;
  static constexpr int kRows = 32, kCols = 32, kLanes = 16;
  static constexpr int kDepth = 16;    // bf16 pairs that one pass sums
  alignas(64) float c[kRows * kCols];  // the sums that row() reads

  DIFFATTN_INLINE void zero() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  /// As in FmaTile, but one chain: tile registers add nothing but products.
  DIFFATTN_INLINE void begin_sum(const float* p, int64_t stride) {
    const int64_t bytes = stride * 4;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);  // as in multiply()
    _tile_loadd(0, p, bytes);
    _tile_loadd(1, p + 16, bytes);
    _tile_loadd(2, p + 16 * stride, bytes);
    _tile_loadd(3, p + 16 * stride + 16, bytes);
  }
  DIFFATTN_INLINE void store(float* p, int64_t stride) const {
    store_upper(p, stride);
    store_lower(p, stride);
  }
  DIFFATTN_INLINE void end_sum(float* p, int64_t stride) const { store(p, stride); }
  /// Stores rows 0 to 15 of the tile; p is the address of row 0.
  DIFFATTN_INLINE void store_upper(float* p, int64_t stride) const {
    _tile_stored(0, p, stride * 4);
    _tile_stored(1, p + 16, stride * 4);
  }
  /// Stores rows 16 to 31 of the tile; p is the address of row 0.
  DIFFATTN_INLINE void store_lower(float* p, int64_t stride) const {
    _tile_stored(2, p + 16 * stride, stride * 4);
    _tile_stored(3, p + 16 * stride + 16, stride * 4);
  }
  /// Reads the rows of a tile that was stored with stride W.
  struct Stored {
    const float* sums;
    DIFFATTN_INLINE Vec row(int i, int h) const { return Isa::load(sums + i * kCols + h * kLanes); }
  };
  DIFFATTN_INLINE Vec row(int i, int h) const { return Isa::load(c + i * kCols + h * kLanes); }

  /// Adds a b, with a [R][steps], and stores the sums for row().
  DIFFATTN_INLINE void multiply_packed(const uint32_t* a, const uint32_t* b, int64_t steps,
                                       const uint32_t*) {
    multiply(a, steps, b, kCols, steps);
    store(c, kCols);
  }
  /// Adds a b, with a[i, k] at a[i * Stride + k].
  template <int Stride>
  DIFFATTN_INLINE void multiply_rows(const uint32_t* a, const uint32_t* b, int64_t steps,
                                     const uint32_t*) {
    multiply(a, Stride, b, kCols, steps);
  }

  /// Adds a b, with a[i, k] at a[i * a_stride + k] and b[k, j] at b[k * b_stride + j].
  DIFFATTN_INLINE void multiply(const uint32_t* a, int64_t a_stride, const uint32_t* b,
                                int64_t b_stride, int64_t steps) {
    const int64_t a_bytes = a_stride * 4, b_bytes = b_stride * 4;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);  // GCC's _tile_loadd does not declare its reads
    for (int64_t k = 0; k < steps; k += kDepth, a += kDepth, b += kDepth * b_stride) {
      _tile_loadd(4, a, a_bytes);
      _tile_loadd(6, b, b_bytes);
      _tile_loadd(7, b + kLanes, b_bytes);
      _tile_loadd(5, a + 16 * a_stride, a_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
};

}  // namespace diffattn::cpu::amx
