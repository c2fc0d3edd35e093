// SPDX-License-Identifier: Apache-2.0
//
// A pass computes O outputs of R rows with one accumulator of 16 floats each, so that every row
// adds in the same order whatever R and O are. Each of R + O loads of 32 numbers serves O or R
// products. 8 rows of 3 outputs leave the fewest loads per product that 32 registers allow.

#include "kernels/cpu/avx512_bf16/dot_rows.h"

#include <immintrin.h>

namespace diffattn::cpu::avx512_bf16 {
namespace {

constexpr int kStep = 32;  // numbers of a vector
/// With fewer rows the kernel relies on hardware prefetching, which is 15 % faster (Zen 5) and
/// needs long streams. So the outputs of a pass are far apart, and each stream continues where it
/// ended in the last pass (8 % faster than adjacent outputs).
constexpr int kPrefetchingRows = 4;

__m512bh load(const uint16_t* from) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from)); }
__m512bh load(const uint16_t* from, int64_t count) {
  const auto mask = static_cast<__mmask32>((uint64_t{1} << count) - 1);
  return reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask, from));
}

float widen(uint16_t bits) {
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits << 16)));
}

/// Computes outputs o, o + apart, ..., O in all, of rows [row, row + R).
template <int R, int O>
void pass(const DotRows& p, int64_t row, int64_t o, int64_t apart) {
  const uint16_t* const x = p.x + row * p.width;
  const uint16_t* const weight = p.weight + o * p.width;
  const int64_t stride = apart * p.width;
  __m512 acc[R][O];
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < O; ++j) acc[r][j] = _mm512_setzero_ps();
  }
  const auto add_products = [&](int64_t i, auto load_at) {
    __m512bh w[O];
#pragma GCC unroll 4
    for (int j = 0; j < O; ++j) w[j] = load_at(weight + j * stride + i);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512bh xs = load_at(x + r * p.width + i);
#pragma GCC unroll 4
      for (int j = 0; j < O; ++j) acc[r][j] = _mm512_dpbf16_ps(acc[r][j], xs, w[j]);
    }
  };
  int64_t i = 0;
  for (; i + kStep <= p.width; i += kStep) {
    if constexpr (R >= kPrefetchingRows) {  // the weights of the next pass; harmless past the end
#pragma GCC unroll 4
      for (int j = 0; j < O; ++j) {
        _mm_prefetch(reinterpret_cast<const char*>(weight + (O + j) * p.width + i), _MM_HINT_T0);
      }
    }
    add_products(i, [](const uint16_t* from) { return load(from); });
  }
  if (i < p.width) {
    add_products(i, [&](const uint16_t* from) { return load(from, p.width - i); });
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < O; ++j) {
      const int64_t output = o + j * apart, at = (row + r) * p.outputs + output;
      const float sum = _mm512_reduce_add_ps(acc[r][j]);
      const float offset = p.bias != nullptr ? widen(p.bias[output]) : 0.0f;
      p.y[at] = (p.add != nullptr ? p.add[at] : 0.0f) + (sum + offset);
    }
  }
}

template <int R, int O>
void rows_of(const DotRows& p, int64_t row, int64_t begin, int64_t end) {
  const int64_t passes = (end - begin) / O;
  for (int64_t i = 0; i < passes; ++i) {
    if constexpr (R < kPrefetchingRows) {
      pass<R, O>(p, row, begin + i, passes);
    } else {
      pass<R, O>(p, row, begin + i * O, 1);
    }
  }
  for (int64_t o = begin + passes * O; o < end; ++o) pass<R, 1>(p, row, o, 1);
}

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

void dot_rows(const DotRows& p, int64_t begin, int64_t end) {
  int64_t row = 0;
  for (; row + 8 <= p.rows; row += 8) rows_of<8, 3>(p, row, begin, end);
  if (row + 4 <= p.rows) rows_of<4, 4>(p, row, begin, end), row += 4;
  if (row + 2 <= p.rows) rows_of<2, 4>(p, row, begin, end), row += 2;
  if (row < p.rows) rows_of<1, 4>(p, row, begin, end);
}

}  // namespace diffattn::cpu::avx512_bf16
