// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/avx512/vec.h"

namespace diffattn::cpu {

/// Vectors of 16 floats with operands of two bf16: loads, conversions and dot products.
template <class Isa>
struct PairOperands : Avx512<Isa> {
  using Vec = __m512;
  using Operand = uint32_t;
  static constexpr int kPair = 2;

  /// Returns 2^x with a relative error below 2e-7: a minimax polynomial of degree 5 on [0, 1) that
  /// is exactly 1 at 0. Degree 4 (error 3e-6) would do for probabilities rounded to bf16, but not
  /// for lse. scalef itself uses floor(x) as the exponent.
  static Vec exp2(Vec x) {
    const Vec f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // x - floor(x)
    Vec p = _mm512_set1_ps(1.867130050e-03f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.017030708e-03f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.579991266e-02f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.401644439e-01f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931512952e-01f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, x);
  }

  /// Loads elements [at, at + 32) of a bf16 array as pairs. Elements from `at + count` on are not
  /// read and become 0.
  static Vec load_pairs(const void* data, int64_t at, int64_t count) {
    const __mmask32 k = count >= 32 ? 0xffffffffu : (1u << count) - 1u;
    return _mm512_castsi512_ps(
        _mm512_maskz_loadu_epi16(k, static_cast<const uint16_t*>(data) + at));
  }
  /// Loads elements [at, at + 32) of a bf16 array as floats: even ones to x[0], odd ones to x[1].
  static void load_even_odd(const void* data, int64_t at, Vec (&x)[2]) {
    const __m512i pairs = _mm512_loadu_si512(static_cast<const uint16_t*>(data) + at);
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    x[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    x[1] = _mm512_castsi512_ps(_mm512_and_si512(pairs, high));
  }
  /// Splits 32 floats into even and odd ones; join_even_odd undoes it.
  static void split_even_odd(Vec (&x)[2]) {
    const __m512i even =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    permute(x, even, _mm512_add_epi32(even, _mm512_set1_epi32(1)));
  }
  static void join_even_odd(Vec (&x)[2]) {
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    permute(x, low, _mm512_add_epi32(low, _mm512_set1_epi32(8)));
  }
  /// Returns sum plus the dot product of the two pairs in each lane.
  static Vec add_dots(Vec sum, Vec x, Vec y) {
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
  }

  /// Rounds 32 columns of one row to bf16 and stores pairs of adjacent columns.
  static void store_operands(Operand* p, Vec x0, Vec x1) {
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(x1, x0));
  }
  /// Rounds 16 columns of two rows to bf16 and stores pairs with one element of each row.
  static void store_row_pair(Operand* p, Vec row0, Vec row1) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(row1, row0);  // 16 of row 0, 16 of row 1
    const __m512i order = _mm512_add_epi32(
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
        _mm512_slli_epi32(
            _mm512_set_epi32(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16), 16));
    _mm512_storeu_si512(p, _mm512_permutexvar_epi16(order, both));
  }

 private:
  static void permute(Vec (&x)[2], __m512i first, __m512i second) {
    const Vec low = _mm512_permutex2var_ps(x[0], first, x[1]);
    x[1] = _mm512_permutex2var_ps(x[0], second, x[1]);
    x[0] = low;
  }
};

}  // namespace diffattn::cpu
