// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/dot_rows.h"

#include "kernels/cpu/avx512/dot_pass.h"

namespace diffattn::cpu::avx512 {
namespace {

struct Numbers {
  using T = float;
  using Vec = __m512;
  static Vec load(const T* from) { return _mm512_loadu_ps(from); }
  static Vec load(const T* from, int64_t count) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1u), from);
  }
  static __m512 multiply_add(__m512 sum, Vec x, Vec w) { return _mm512_fmadd_ps(x, w, sum); }
  static float widen(T value) { return value; }
};

}  // namespace

void dot_rows(const DotRows<float>& p, int64_t begin, int64_t end) {
  DotPass<Numbers>::all_rows(p, begin, end);
}

}  // namespace diffattn::cpu::avx512
