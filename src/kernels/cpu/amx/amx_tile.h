// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/fma_tile.h"

namespace diffattn::cpu::amx {

/// What LDTILECFG reads: all eight tile registers as 16 rows of 64 B.
struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

/// A constant in memory: _tile_loadconfig says of 8 of the 64 bytes that it reads them, so stores
/// to a local variable's other bytes would be dropped.
template <class Isa>
inline constexpr TileConfig kTileConfig{
    .palette = 1,
    .start_row = 0,
    .reserved = {},
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

/// A 32 x 32 tile of sums in tile registers 0 to 3; 4 and 5 hold rows of the left side, 6 and 7
/// columns of the right. One pass of four TDPBF16PS sums 16 pairs and loads four tiles: 64 clocks
/// of products against 32 of loads.
template <class Isa>
struct AmxTile {
  using Vec = __m512;
  static constexpr int kRows = 32, kCols = 32, kLanes = 16;
  static constexpr int kDepth = 16;    // pairs of one pass
  alignas(64) float c[kRows * kCols];  // where row() reads

  DIFFATTN_INLINE void zero() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  DIFFATTN_INLINE void load(const float* p, int64_t stride) {
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
  /// p is where the whole tile goes.
  DIFFATTN_INLINE void store_upper(float* p, int64_t stride) const {
    _tile_stored(0, p, stride * 4);
    _tile_stored(1, p + 16, stride * 4);
  }
  DIFFATTN_INLINE void store_lower(float* p, int64_t stride) const {
    _tile_stored(2, p + 16 * stride, stride * 4);
    _tile_stored(3, p + 16 * stride + 16, stride * 4);
  }
  /// Sums that were stored with stride W.
  struct Stored {
    const float* sums;
    DIFFATTN_INLINE Vec row(int i, int h) const { return Isa::load(sums + i * kCols + h * kLanes); }
  };
  DIFFATTN_INLINE Vec row(int i, int h) const { return Isa::load(c + i * kCols + h * kLanes); }

  /// a [R][steps]; afterwards row() may be called.
  DIFFATTN_INLINE void multiply_packed(const uint32_t* a, const uint32_t* b, int64_t steps,
                                       const uint32_t*) {
    multiply(a, steps, b, kCols, steps);
    store(c, kCols);
  }
  /// a[i, k] at a[i * Stride + k].
  template <int Stride>
  DIFFATTN_INLINE void multiply_rows(const uint32_t* a, const uint32_t* b, int64_t steps,
                                     const uint32_t*) {
    multiply(a, Stride, b, kCols, steps);
  }

  /// a[i, k] at a[i * a_stride + k], b[k, j] at b[k * b_stride + j].
  DIFFATTN_INLINE void multiply(const uint32_t* a, int64_t a_stride, const uint32_t* b,
                                int64_t b_stride, int64_t steps) {
    const int64_t a_bytes = a_stride * 4, b_bytes = b_stride * 4;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);  // _tile_loadd does not say that it reads memory
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
