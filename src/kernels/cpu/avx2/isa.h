// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

#include "kernels/cpu/block.h"
#include "kernels/cpu/fma_tile.h"
#include "kernels/cpu/gradient_operands.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/tile_size.h"

/// AVX2 with FMA and F16C, fp32 operands: 16 registers of 8 floats.
namespace diffattn::cpu::avx2 {

struct Isa {
  using Vec = __m256;
  using Operand = float;
  using Tile = FmaTile<Isa>;
  using Pack = FloatPack<Isa>;
  using Gradients = FloatGradients<Isa>;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 6;  // 6 x 2 sums + 2 vectors of b + 1 broadcast: 15 registers
  static constexpr bool kOverlap = false;
  static constexpr int kCols = 2 * kLanes;
  static constexpr int kPair = 1;

  struct Session {};
  using DecodeSession = Session;

  static Vec zero() { return _mm256_setzero_ps(); }
  static Vec set1(float x) { return _mm256_set1_ps(x); }
  static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
  static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  /// max and min return the second operand if either is NaN.
  static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  /// Returns a b - c.
  static Vec fms(Vec a, Vec b, Vec c) { return _mm256_fmsub_ps(a, b, c); }
  static float sum(Vec x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float maximum(Vec x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }

  /// Returns x where a bit is set, else `other`.
  static Vec select(uint32_t bits, Vec x, Vec other) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane);
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lane)));
  }
  /// Returns x where `map` is not zero, else 0. Keeps 0 * inf from becoming NaN.
  static Vec where_seen(Vec map, Vec x) {
    return _mm256_and_ps(_mm256_cmp_ps(map, zero(), _CMP_NEQ_UQ), x);
  }
  static float lane0(Vec x) { return _mm256_cvtss_f32(x); }
  /// Returns a bit for each of `count` <= 16 bytes that is not zero.
  static uint32_t nonzero_bytes(const uint8_t* p, int64_t count) {
    __m128i bytes = _mm_setzero_si128();
    __builtin_memcpy(&bytes, p, static_cast<size_t>(count));
    const __m128i none = _mm_cmpeq_epi8(bytes, _mm_setzero_si128());
    return ~static_cast<uint32_t>(_mm_movemask_epi8(none)) & 0xffffu;
  }
  static uint32_t not_equal_bits(Vec x, float value) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, set1(value), _CMP_NEQ_UQ)));
  }
  static uint32_t greater_bits(Vec a, Vec b) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)));
  }
  static bool all_below(Vec x, float limit) {  // false for NaN
    return _mm256_movemask_ps(_mm256_cmp_ps(x, set1(limit), _CMP_LT_OQ)) == 0xff;
  }

  /// Returns 2^x with a relative error below 1e-7: a minimax polynomial of degree 6 on [-1/2, 1/2],
  /// times a power of two built from its exponent bits. Gives 0 for x < -126.5 and infinity for
  /// x > 127.5.
  static Vec exp2(Vec x) {
    x = _mm256_min_ps(set1(128.0f), max(set1(-127.0f), x));  // keeps NaN
    const Vec n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vec f = sub(x, n);
    Vec p = set1(1.534581200e-04f);
    p = fma(p, f, set1(1.339993122e-03f));
    p = fma(p, f, set1(9.618488957e-03f));
    p = fma(p, f, set1(5.550328777e-02f));
    p = fma(p, f, set1(2.402264689e-01f));
    p = fma(p, f, set1(6.931472057e-01f));
    p = fma(p, f, set1(1.0f));
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)));
  }

  /// Splits x > 0 into m 2^exponent with m in [sqrt(1/2), sqrt(2)) and returns m. Finite for x = 0.
  static Vec mantissa(Vec x, Vec* exponent) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i k = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(kRootHalf)), 23);
    *exponent = _mm256_cvtepi32_ps(k);
    return _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(k, 23)));
  }

  /// Loads elements [at, at + 8) of an array as floats. Elements from `at + count` on are not read
  /// and become 0.
  static Vec load_elements(const void* data, Dtype dtype, int64_t at, int64_t count) {
    if (dtype == Dtype::kFloat32) {
      const float* p = static_cast<const float*>(data) + at;
      return count >= kLanes ? load(p) : _mm256_maskload_ps(p, first(count));
    }
    const uint16_t* p = static_cast<const uint16_t*>(data) + at;
    __m128i half = _mm_setzero_si128();
    __builtin_memcpy(&half, p, count >= kLanes ? 16 : 2 * static_cast<size_t>(count));
    if (dtype == Dtype::kFloat16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static void store_elements(void* data, Dtype dtype, int64_t at, int64_t count, Vec x) {
    if (dtype == Dtype::kFloat32) {
      float* p = static_cast<float*>(data) + at;
      if (count >= kLanes) return store(p, x);
      return _mm256_maskstore_ps(p, first(count), x);
    }
    const __m128i half = dtype == Dtype::kFloat16
                             ? _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                             : to_bfloat16(x);
    __builtin_memcpy(static_cast<uint16_t*>(data) + at, &half,
                     count >= kLanes ? 16 : 2 * static_cast<size_t>(count));
  }
  /// Rounds to nearest even; NaN stays NaN.
  static __m128i to_bfloat16(Vec x) {
    const __m256i word = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(word, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(word, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(word, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  }
  static void store_operands(Operand* p, Vec x0, Vec x1) {
    store(p, x0);
    store(p + kLanes, x1);
  }

  /// Transposes 8 x 8 floats in place.
  static void transpose(Vec r[kLanes]) {
    Vec u[kLanes];
    for (int j = 0; j < 8; j += 4) {
      const Vec a = _mm256_unpacklo_ps(r[j], r[j + 1]), b = _mm256_unpackhi_ps(r[j], r[j + 1]);
      const Vec c = _mm256_unpacklo_ps(r[j + 2], r[j + 3]);
      const Vec d = _mm256_unpackhi_ps(r[j + 2], r[j + 3]);
      u[j] = _mm256_shuffle_ps(a, c, 0x44);
      u[j + 1] = _mm256_shuffle_ps(a, c, 0xee);
      u[j + 2] = _mm256_shuffle_ps(b, d, 0x44);
      u[j + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    for (int j = 0; j < 4; ++j) {
      r[j] = _mm256_permute2f128_ps(u[j], u[j + 4], 0x20);
      r[j + 4] = _mm256_permute2f128_ps(u[j], u[j + 4], 0x31);
    }
  }
  /// Returns a vector whose lane j is the sum of all lanes of x[j].
  static Vec sums(const Vec (&x)[kLanes]) {
    const Vec a = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    const Vec b = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  }

 private:
  /// Returns a mask of the first `count` lanes.
  static __m256i first(int64_t count) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane);
  }
};

}  // namespace diffattn::cpu::avx2
