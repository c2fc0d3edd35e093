// SPDX-License-Identifier: Apache-2.0
//
// Step (1) of decoding with AMX: the scores of four query rows as k q^T,
//
//   sums[n][r] = k[n] . q[r]                 [keys][4], bf16 products, fp32 sums
//
// Rows of k are a left operand without packing; only the small q is transposed, once per chunk.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/amx/amx_tile.h"
#include "kernels/cpu/decode.h"

namespace diffattn::cpu::amx {

/// Tile registers for decoding: 0 and 1 hold sums [16 keys][4 rows], 2 and 3 hold 16 keys each, 4
/// holds four rows of q as columns.
template <class Isa>
inline constexpr TileConfig kDecodeConfig{
    .palette = 1,
    .start_row = 0,
    .reserved = {},
    .row_bytes = {16, 16, 64, 64, 16},
    .rows = {16, 16, 16, 16, 16},
};

template <class Isa>
struct DecodeTile {
  static constexpr int kRows = 4, kKeys = 32;

  /// Configures the tile registers for its lifetime.
  struct Session {
    Session() { _tile_loadconfig(&kDecodeConfig<Isa>); }
    ~Session() { _tile_release(); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  /// Transposes four rows of q: out [width / 2 pairs][4].
  static void turn(const void* const (&q)[kRows], int64_t width, uint32_t* out) {
    for (int64_t k = 0; k < width / 2; k += 16, out += 64) {
      __m512i x[kRows];
      for (int r = 0; r < kRows; ++r) {
        x[r] = _mm512_loadu_si512(static_cast<const uint32_t*>(q[r]) + k);
      }
      const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
      const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
      // 128-bit quarter j of p[i] holds pair 4 j + i of all four rows.
      const __m512i p[4] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c),
                            _mm512_unpacklo_epi64(b, d), _mm512_unpackhi_epi64(b, d)};
      const __m512i low01 = _mm512_shuffle_i64x2(p[0], p[1], 0x44);
      const __m512i low23 = _mm512_shuffle_i64x2(p[2], p[3], 0x44);
      const __m512i high01 = _mm512_shuffle_i64x2(p[0], p[1], 0xee);
      const __m512i high23 = _mm512_shuffle_i64x2(p[2], p[3], 0xee);
      _mm512_storeu_si512(out, _mm512_shuffle_i64x2(low01, low23, 0x88));
      _mm512_storeu_si512(out + 16, _mm512_shuffle_i64x2(low01, low23, 0xdd));
      _mm512_storeu_si512(out + 32, _mm512_shuffle_i64x2(high01, high23, 0x88));
      _mm512_storeu_si512(out + 48, _mm512_shuffle_i64x2(high01, high23, 0xdd));
    }
  }

  /// Computes sums[n][r] = q[r] . k[n] for 32 rows of k, `stride` bytes apart. Calls more(j, c)
  /// after the load of elements [c, c + 32) of rows [j, j + 16), for prefetches.
  template <class More>
  static void scores(const uint32_t* q, const void* keys, int64_t stride, int64_t width,
                     float* sums, const More& more) {
    const char* k = static_cast<const char*>(keys);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);  // GCC's _tile_loadd does not declare its reads
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t c = 0; c < width; c += 32) {
      _tile_loadd(4, q + c * 2, 16);
      _tile_loadd(2, k + c * 2, stride);
      more(0, c);
      _tile_loadd(3, k + c * 2 + 16 * stride, stride);
      more(16, c);
      _tile_dpbf16ps(0, 2, 4);
      _tile_dpbf16ps(1, 3, 4);
    }
    _tile_stored(0, sums, 16);
    _tile_stored(1, sums + 64, 16);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
  }

  /// Transposes sums [keys][4 rows] to out [row][key].
  static void turn_back(const float* sums, float (&out)[kRows][kTileKeys]) {
    for (int n = 0; n < kTileKeys; n += 16) turn_back(sums + n * kRows, n, out);
  }

 private:
  /// Transposes sums [16 keys][4 rows] to out[r][first .. first + 16).
  static void turn_back(const float* sums, int first, float (&out)[kRows][kTileKeys]) {
    const __m512i rows01 =
        _mm512_set_epi32(29, 25, 21, 17, 13, 9, 5, 1, 28, 24, 20, 16, 12, 8, 4, 0);
    const __m512i rows23 = _mm512_add_epi32(rows01, _mm512_set1_epi32(2));
    const __m512 a = _mm512_load_ps(sums), b = _mm512_load_ps(sums + 16);
    const __m512 c = _mm512_load_ps(sums + 32), d = _mm512_load_ps(sums + 48);
    const __m512 ab01 = _mm512_permutex2var_ps(a, rows01, b);
    const __m512 cd01 = _mm512_permutex2var_ps(c, rows01, d);
    const __m512 ab23 = _mm512_permutex2var_ps(a, rows23, b);
    const __m512 cd23 = _mm512_permutex2var_ps(c, rows23, d);
    _mm512_storeu_ps(out[0] + first, _mm512_shuffle_f32x4(ab01, cd01, 0x44));
    _mm512_storeu_ps(out[1] + first, _mm512_shuffle_f32x4(ab01, cd01, 0xee));
    _mm512_storeu_ps(out[2] + first, _mm512_shuffle_f32x4(ab23, cd23, 0x44));
    _mm512_storeu_ps(out[3] + first, _mm512_shuffle_f32x4(ab23, cd23, 0xee));
  }
};

}  // namespace diffattn::cpu::amx
