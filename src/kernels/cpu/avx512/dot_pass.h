// SPDX-License-Identifier: Apache-2.0
//
// Products of a few rows in vectors of 64 bytes, for AVX-512. A pass computes O outputs of R rows
// with one accumulator of 16 floats each, so that every row adds in the same order whatever R and O
// are. Each of R + O loads serves O or R products. 8 rows of 3 outputs leave the fewest loads per
// product that 32 registers allow.
//
// Numbers has the operations on one type: T, load, multiply_add, widen.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/dot_rows.h"

namespace diffattn::cpu {

template <class Numbers>
class DotPass {
  using T = typename Numbers::T;
  static constexpr int64_t kStep = kVectorBytes / static_cast<int64_t>(sizeof(T));
  /// With fewer rows the kernel relies on hardware prefetching, which is 15 % faster (Zen 5) and
  /// needs long streams. So the outputs of a pass are far apart, and each stream continues where it
  /// ended in the last pass (8 % faster than adjacent outputs).
  static constexpr int kPrefetchingRows = 4;

 public:
  static void all_rows(const DotRows<T>& p, int64_t begin, int64_t end) {
    for (int64_t row = 0; row < p.rows;) {
      const int64_t rows = rows_of_pass(p.rows - row);
      if (rows == 8) rows_of<8, 3>(p, row, begin, end);
      if (rows == 4) rows_of<4, 4>(p, row, begin, end);
      if (rows == 2) rows_of<2, 4>(p, row, begin, end);
      if (rows == 1) rows_of<1, 4>(p, row, begin, end);
      row += rows;
    }
  }

 private:
  template <int R, int O>
  static void rows_of(const DotRows<T>& p, int64_t row, int64_t begin, int64_t end) {
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

  /// Computes outputs o, o + apart, ..., O in all, of rows [row, row + R).
  template <int R, int O>
  static void pass(const DotRows<T>& p, int64_t row, int64_t o, int64_t apart) {
    const T* const x = p.x + row * packed_width<T>(p.width);
    const T* const weight = p.weight + o * p.width;
    const int64_t stride = apart * p.width;
    __m512 acc[R][O];
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < O; ++j) acc[r][j] = _mm512_setzero_ps();
    }
    const auto add_products = [&](int64_t i, auto load_weights) {
      typename Numbers::Vec w[O];
#pragma GCC unroll 4
      for (int j = 0; j < O; ++j) w[j] = load_weights(weight + j * stride + i);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        auto xs = Numbers::load(x + i * R + r * kStep);
        asm("" : "+v"(xs));  // stays in a register: g++ would load it again for each product
#pragma GCC unroll 4
        for (int j = 0; j < O; ++j) acc[r][j] = Numbers::multiply_add(acc[r][j], xs, w[j]);
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
      add_products(i, [](const T* from) { return Numbers::load(from); });
    }
    if (i < p.width) {
      add_products(i, [&](const T* from) { return Numbers::load(from, p.width - i); });
    }
    float sums[O][R];
#pragma GCC unroll 4
    for (int j = 0; j < O; ++j) {
      __m512 column[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) column[r] = acc[r][j];
      add_lanes(column, sums[j]);
    }
    for (int j = 0; j < O; ++j) {
      const int64_t output = o + j * apart;
      const float offset = p.bias != nullptr ? Numbers::widen(p.bias[output]) : 0.0f;
      for (int r = 0; r < R; ++r) {
        const int64_t at = (row + r) * p.outputs + output;
        p.y[at] = (p.add != nullptr ? p.add[at] : 0.0f) + (sums[j][r] + offset);
      }
    }
  }

  /// Sets sums[r] to the sum of the lanes of v[r], in the same order for every R: halves, quarters,
  /// lanes two apart, neighbours.
  template <int R>
  static void add_lanes(const __m512 (&v)[R], float (&sums)[R]) {
    const auto halves = [](__m512 x) {
      return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    };
    const auto quarters = [&](__m512 x) {
      return _mm_add_ps(_mm256_castps256_ps128(halves(x)), _mm256_extractf128_ps(halves(x), 1));
    };
    if constexpr (R == 8) {
      __m256 pairs[4];  // of rows r and r + 4
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        const __m256 a = halves(v[r]), b = halves(v[r + 4]);
        pairs[r] =
            _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
      }
      const auto fold = [](__m256 a, __m256 b) {
        return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
      };
      const __m256 low = fold(pairs[0], pairs[1]), high = fold(pairs[2], pairs[3]);
      _mm256_storeu_ps(sums, _mm256_add_ps(_mm256_shuffle_ps(low, high, 0x88),
                                           _mm256_shuffle_ps(low, high, 0xdd)));
    } else if constexpr (R == 4) {
      const auto fold = [&](__m512 a, __m512 b) {
        const __m128 x = quarters(a), y = quarters(b);
        return _mm_add_ps(_mm_shuffle_ps(x, y, 0x44), _mm_shuffle_ps(x, y, 0xee));
      };
      const __m128 low = fold(v[0], v[1]), high = fold(v[2], v[3]);
      _mm_storeu_ps(sums,
                    _mm_add_ps(_mm_shuffle_ps(low, high, 0x88), _mm_shuffle_ps(low, high, 0xdd)));
    } else {
      for (int r = 0; r < R; ++r) {
        const __m128 four = quarters(v[r]);
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        sums[r] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
      }
    }
  }
};

}  // namespace diffattn::cpu
