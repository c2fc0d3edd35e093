// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/avx512/vec.h"

namespace diffattn::cpu {

/// Operands of two bf16, made from fp32.
template <class Isa>
struct PairOperands : Avx512<Isa> {
  using Vec = __m512;
  using Operand = uint32_t;
  static constexpr int kPair = 2;

  /// 2^x with relative error below 2e-7: degree 5 is enough for what is rounded to bf16.
  static Vec exp2(Vec x) {
    const Vec n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vec f = _mm512_sub_ps(x, n);
    Vec p = _mm512_set1_ps(1.327647245e-03f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.675540961e-03f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.550713092e-02f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402212024e-01f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931469440e-01f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
  }

  /// 32 columns of one row: columns two by two.
  static void store_operands(Operand* p, Vec x0, Vec x1) {
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(x1, x0));
  }
  /// 16 columns of two rows: rows two by two.
  static void store_row_pair(Operand* p, Vec row0, Vec row1) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(row1, row0);  // 16 of row 0, 16 of row 1
    const __m512i order = _mm512_add_epi32(
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
        _mm512_slli_epi32(
            _mm512_set_epi32(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16), 16));
    _mm512_storeu_si512(p, _mm512_permutexvar_epi16(order, both));
  }
};

}  // namespace diffattn::cpu
