// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace diffattn::cpu {

/// y = add + x weight^T + bias for a few rows. T is float, or uint16_t for the bits of bfloat16
/// numbers.
template <class T>
struct DotRows {
  const T* x;        // packed: the rows of a pass beside each other, vector by vector
  const T* weight;   // [outputs, width]
  const T* bias;     // [outputs] or null
  const float* add;  // [rows, outputs] or null; may be y
  float* y;          // [rows, outputs]
  int64_t rows, width, outputs;
};

inline constexpr int64_t kVectorBytes = 64;

/// Numbers of a packed row: its width, rounded up to whole vectors.
template <class T>
[[gnu::always_inline]] constexpr int64_t packed_width(int64_t width) {
  constexpr int64_t step = kVectorBytes / static_cast<int64_t>(sizeof(T));
  return (width + step - 1) / step * step;
}

/// Rows that one pass over the weights serves, of `left` rows.
[[gnu::always_inline]] constexpr int64_t rows_of_pass(int64_t left) {
  return left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

}  // namespace diffattn::cpu

namespace diffattn::cpu::avx512 {
/// Computes outputs [begin, end) of all rows by FMA. x is packed. A row's result does not depend on
/// the other rows.
void dot_rows(const DotRows<float>& p, int64_t begin, int64_t end);
}  // namespace diffattn::cpu::avx512

namespace diffattn::cpu::avx512_bf16 {
/// The same by vdpbf16ps.
void dot_rows(const DotRows<uint16_t>& p, int64_t begin, int64_t end);

/// Rounds to the nearest bfloat16, ties to even.
void to_bfloat16(const float* from, uint16_t* to, int64_t count);
}  // namespace diffattn::cpu::avx512_bf16
