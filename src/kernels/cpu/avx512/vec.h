// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include "kernels/cpu/block.h"
#include "kernels/cpu/tile_size.h"

namespace diffattn::cpu {

/// Operations on vectors of 16 floats, shared by all instruction sets that build on AVX-512 (F, BW,
/// DQ, VL). `Isa` gives each of them an instantiation of its own, because their compiler flags
/// differ.
template <class Isa>
struct Avx512 {
  using Vec = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kCols = 2 * kLanes;

  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec set1(float x) { return _mm512_set1_ps(x); }
  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  /// max and min return the second operand if either is NaN.
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  /// Returns a b - c.
  static Vec fms(Vec a, Vec b, Vec c) { return _mm512_fmsub_ps(a, b, c); }
  static float sum(Vec x) { return _mm512_reduce_add_ps(x); }
  static float maximum(Vec x) { return _mm512_reduce_max_ps(x); }

  /// Returns x where a bit is set, else `other`.
  static Vec select(uint32_t bits, Vec x, Vec other) {
    return _mm512_mask_mov_ps(other, static_cast<__mmask16>(bits), x);
  }
  /// Returns x where `map` is not zero, else 0. Keeps 0 * inf from becoming NaN.
  static Vec where_seen(Vec map, Vec x) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(map, zero(), _CMP_NEQ_UQ), x);
  }
  static float lane0(Vec x) { return _mm512_cvtss_f32(x); }
  /// Returns a bit for each of `count` <= 32 bytes that is not zero.
  static uint32_t nonzero_bytes(const uint8_t* p, int64_t count) {
    const __mmask32 k = static_cast<__mmask32>((uint64_t{1} << count) - 1);
    const __m256i bytes = _mm256_maskz_loadu_epi8(k, p);
    return _mm256_test_epi8_mask(bytes, bytes);
  }
  static uint32_t not_equal_bits(Vec x, float value) {
    return _mm512_cmp_ps_mask(x, set1(value), _CMP_NEQ_UQ);
  }
  static uint32_t greater_bits(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static bool all_below(Vec x, float limit) {  // false for NaN
    return _mm512_cmp_ps_mask(x, set1(limit), _CMP_LT_OQ) == 0xffff;
  }

  /// Returns 2^x with a relative error below 1e-7: a minimax polynomial of degree 6 on [-1/2, 1/2].
  /// scalef accepts any exponent and flushes results that are too small.
  static Vec exp2(Vec x) {
    const Vec n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vec f = sub(x, n);
    Vec p = set1(1.534581200e-04f);
    p = fma(p, f, set1(1.339993122e-03f));
    p = fma(p, f, set1(9.618488957e-03f));
    p = fma(p, f, set1(5.550328777e-02f));
    p = fma(p, f, set1(2.402264689e-01f));
    p = fma(p, f, set1(6.931472057e-01f));
    p = fma(p, f, set1(1.0f));
    return _mm512_scalef_ps(p, n);
  }

  /// Splits x > 0 into m 2^exponent with m in [sqrt(1/2), sqrt(2)) and returns m. Finite for x = 0.
  static Vec mantissa(Vec x, Vec* exponent) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i k = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(kRootHalf)), 23);
    *exponent = _mm512_cvtepi32_ps(k);
    return _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(k, 23)));
  }

  /// Returns a mask of the first `count` lanes.
  static __mmask16 first(int64_t count) {
    return static_cast<__mmask16>(count >= kLanes ? 0xffffu : (1u << count) - 1u);
  }
  /// Loads elements [at, at + 16) of an array as floats. Elements from `at + count` on are not read
  /// and become 0.
  static Vec load_elements(const void* data, Dtype dtype, int64_t at, int64_t count) {
    const __mmask16 k = first(count);
    if (dtype == Dtype::kFloat32) {
      return _mm512_maskz_loadu_ps(k, static_cast<const float*>(data) + at);
    }
    const __m256i half = _mm256_maskz_loadu_epi16(k, static_cast<const uint16_t*>(data) + at);
    if (dtype == Dtype::kFloat16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static void store_elements(void* data, Dtype dtype, int64_t at, int64_t count, Vec x) {
    const __mmask16 k = first(count);
    if (dtype == Dtype::kFloat32) {
      _mm512_mask_storeu_ps(static_cast<float*>(data) + at, k, x);
      return;
    }
    const __m256i half = dtype == Dtype::kFloat16
                             ? _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                             : to_bfloat16(x);
    _mm256_mask_storeu_epi16(static_cast<uint16_t*>(data) + at, k, half);
  }
  /// Rounds to nearest even; NaN stays NaN.
  static __m256i to_bfloat16(Vec x) {
    const __m512i word = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(word, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(word, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(word, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(up, nan, quiet), 16));
  }
  /// Transposes 16 x 16 floats in place.
  static void transpose(Vec r[kLanes]) {
    Vec u[kLanes];
    for (int j = 0; j < 16; j += 2) {
      u[j] = _mm512_unpacklo_ps(r[j], r[j + 1]);
      u[j + 1] = _mm512_unpackhi_ps(r[j], r[j + 1]);
    }
    for (int j = 0; j < 16; j += 4) {
      r[j] = unpacklo64(u[j], u[j + 2]);
      r[j + 1] = unpackhi64(u[j], u[j + 2]);
      r[j + 2] = unpacklo64(u[j + 1], u[j + 3]);
      r[j + 3] = unpackhi64(u[j + 1], u[j + 3]);
    }
    for (int j = 0; j < 4; ++j) {
      const Vec a = _mm512_shuffle_f32x4(r[j], r[j + 4], 0x88);
      const Vec b = _mm512_shuffle_f32x4(r[j + 8], r[j + 12], 0x88);
      const Vec c = _mm512_shuffle_f32x4(r[j], r[j + 4], 0xdd);
      const Vec d = _mm512_shuffle_f32x4(r[j + 8], r[j + 12], 0xdd);
      u[j] = _mm512_shuffle_f32x4(a, b, 0x88);
      u[j + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
      u[j + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
      u[j + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
    for (int j = 0; j < 16; ++j) r[j] = u[j];
  }
  /// Returns a vector whose lane j is the sum of all lanes of x[j]. It adds after each step of
  /// interleaving, so it needs 30 shuffles, where a transpose has 64.
  static Vec sums(const Vec (&x)[kLanes]) {
    Vec u[4];
    for (int j = 0; j < 4; ++j) {
      const Vec a = add(_mm512_unpacklo_ps(x[4 * j], x[4 * j + 1]),
                        _mm512_unpackhi_ps(x[4 * j], x[4 * j + 1]));
      const Vec b = add(_mm512_unpacklo_ps(x[4 * j + 2], x[4 * j + 3]),
                        _mm512_unpackhi_ps(x[4 * j + 2], x[4 * j + 3]));
      u[j] = add(unpacklo64(a, b), unpackhi64(a, b));  // per quarter: sums of x[4 j + lane % 4]
    }
    const auto quarters = [](Vec a, Vec b) {
      return add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    return quarters(quarters(u[0], u[1]), quarters(u[2], u[3]));
  }

 private:
  static Vec unpacklo64(Vec a, Vec b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
  static Vec unpackhi64(Vec a, Vec b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
};

}  // namespace diffattn::cpu
