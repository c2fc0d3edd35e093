// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/dot_rows.h"

#include "kernels/cpu/avx512/dot_pass.h"

namespace diffattn::cpu::avx512_bf16 {
namespace {

struct Numbers {
  using T = uint16_t;
  using Vec = __m512bh;
  static Vec load(const T* from) { return reinterpret_cast<Vec>(_mm512_loadu_si512(from)); }
  static Vec load(const T* from, int64_t count) {
    const auto mask = static_cast<__mmask32>((uint64_t{1} << count) - 1);
    return reinterpret_cast<Vec>(_mm512_maskz_loadu_epi16(mask, from));
  }
  static __m512 multiply_add(__m512 sum, Vec x, Vec w) { return _mm512_dpbf16_ps(sum, x, w); }
  static float widen(T bits) {
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits << 16)));
  }
};

}  // namespace

void to_bfloat16(const float* from, uint16_t* to, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(from + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), reinterpret_cast<__m256i>(rounded));
  }
  if (i == count) return;
  const auto mask = static_cast<__mmask16>((1u << (count - i)) - 1u);
  const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, from + i));
  _mm256_mask_storeu_epi16(to + i, mask, reinterpret_cast<__m256i>(rounded));
}

void dot_rows(const DotRows<uint16_t>& p, int64_t begin, int64_t end) {
  DotPass<Numbers>::all_rows(p, begin, end);
}

}  // namespace diffattn::cpu::avx512_bf16
