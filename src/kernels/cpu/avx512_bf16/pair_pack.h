// SPDX-License-Identifier: Apache-2.0
//
// Packs bf16 inputs as operands of two bf16 that are adjacent in the summed dimension, as vdpbf16ps
// and TDPBF16PS take them. The bits are copied, not converted:
//
//   transposed  W rows of k or v as columns        [steps][W]                 for q k^T, dO v^T
//   rows        W rows of v or k as pairs of rows  [ceil(width / W)][W / 2][W]   for p v, ds k
//   strip       R rows of q or dO, interleaved     [steps][R]                 for q k^T, dO v^T
//
// steps is width / 2, rounded up to a multiple of kDepth; padding is zero.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/block.h"

namespace diffattn::cpu {

/// kDepth: operands that a product takes at a time (1, or 16 with AMX).
template <class Isa, int kDepth>
struct PairPack {
  static constexpr int kLanes = Isa::kLanes, kCols = Isa::kCols, kRows = Isa::kRows;

  static int64_t steps(int64_t width) { return (width + 2 * kDepth - 1) / (2 * kDepth) * kDepth; }
  static int64_t transposed_operands(int64_t width) { return steps(width) * kCols; }
  static int64_t strip_operands(int64_t width) { return steps(width) * kRows; }

  /// Packs rows [panel * W, (panel + 1) * W) as columns: out [steps][W].
  static void transposed(const Matrix* in, int64_t first, int64_t end, int64_t panel, void* out) {
    const int64_t depth = steps(in->width);
    for (int h = 0; h < kCols; h += kLanes) {
      const int64_t row0 = panel * kCols + h;
      for (int64_t k = 0; k < depth; k += kLanes) {
        __m512 r[kLanes];
        for (int j = 0; j < kLanes; ++j) {
          const bool used = row0 + j >= first && row0 + j < end;
          r[j] = used ? load_pairs(row(in, row0 + j), in->width, k) : _mm512_setzero_ps();
        }
        Isa::transpose(r);
        for (int64_t j = 0; j < kLanes && k + j < depth; ++j) {
          _mm512_storeu_ps(static_cast<float*>(out) + (k + j) * kCols + h, r[j]);
        }
      }
    }
  }

  /// Packs the same rows as pairs of rows: ceil(width / W) column panels [W / 2 pairs][W],
  /// column_stride apart. Returns a bit for each odd row and writes odd rows as zeros.
  static uint32_t rows(const Matrix* in, int64_t first, int64_t end, int64_t panel,
                       int64_t column_stride, void* out) {
    uint32_t* to = static_cast<uint32_t*>(out);
    const int64_t padded = (in->width + kCols - 1) / kCols * kCols;
    uint32_t odd = 0;
    for (int j = 0; j < kCols; j += 2) {
      const uint16_t* pair[2];
      for (int i = 0; i < 2; ++i) {
        const int64_t n = panel * kCols + j + i;
        pair[i] = n >= first && n < end ? row(in, n) : nullptr;
        if (pair[i] == nullptr || is_finite(pair[i], in->width)) continue;
        odd |= 1u << (j + i);
        pair[i] = nullptr;
      }
      for (int64_t c = 0; c < padded; c += kLanes) {
        const __m512i low = load_words(pair[0], in->width, c);
        const __m512i high = _mm512_slli_epi32(load_words(pair[1], in->width, c), 16);
        _mm512_storeu_si512(to + c / kCols * column_stride + j / 2 * kCols + c % kCols,
                            _mm512_or_si512(low, high));
      }
    }
    return odd;
  }

  /// Packs the rows of a strip, interleaved: out [steps][R], with a spare vector as in FloatPack.
  static void strip(const void* const* rows, Dtype, int64_t width, uint32_t* out) {
    for (int64_t k = 0; k < steps(width); k += kLanes) {
      __m512 r[kLanes];
      for (int j = 0; j < kLanes; ++j) {
        const bool used = j < kRows && rows[j] != nullptr;
        r[j] = used ? load_pairs(static_cast<const uint16_t*>(rows[j]), width, k)
                    : _mm512_setzero_ps();
      }
      Isa::transpose(r);
      for (int64_t j = 0; j < kLanes && k + j < steps(width); ++j) {
        _mm512_storeu_ps(reinterpret_cast<float*>(out + (k + j) * kRows), r[j]);
      }
    }
  }

  /// Loads operands [k, k + 16) of a row; 0 beyond its width.
  static __m512 load_pairs(const uint16_t* row, int64_t width, int64_t k) {
    const int64_t count = width - 2 * k;
    const __mmask32 mask = count >= 32 ? 0xffffffffu : count <= 0 ? 0u : (1u << count) - 1u;
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, row + 2 * k));
  }

 private:
  static const uint16_t* row(const Matrix* in, int64_t n) {
    return static_cast<const uint16_t*>(in->data) + n * in->stride;
  }
  /// Loads elements [c, c + 16) as 32-bit words; 0 beyond the width or if `row` is null.
  static __m512i load_words(const uint16_t* row, int64_t width, int64_t c) {
    if (row == nullptr || c >= width) return _mm512_setzero_si512();
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(Isa::first(width - c), row + c));
  }
  static bool is_finite(const uint16_t* row, int64_t width) {
    const __m512i exponent = _mm512_set1_epi32(0x7f80);
    for (int64_t c = 0; c < width; c += kLanes) {
      const __m512i bits = _mm512_and_si512(load_words(row, width, c), exponent);
      if (_mm512_cmpeq_epi32_mask(bits, exponent) != 0) return false;
    }
    return true;
  }
};

}  // namespace diffattn::cpu
