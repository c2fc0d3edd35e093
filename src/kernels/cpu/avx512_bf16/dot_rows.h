// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace diffattn::cpu::avx512_bf16 {

/// y = add + x weight^T + bias for a few rows; x, weight and bias are the bits of bfloat16 numbers.
struct DotRows {
  const uint16_t* x;       // [rows, width]
  const uint16_t* weight;  // [outputs, width]
  const uint16_t* bias;    // [outputs] or null
  const float* add;        // [rows, outputs] or null; may be y
  float* y;                // [rows, outputs]
  int64_t rows, width, outputs;
};

/// Rounds to the nearest bfloat16, ties to even.
void to_bfloat16(const float* from, uint16_t* to, int64_t count);

/// Computes outputs [begin, end) of all rows by vdpbf16ps. A row's result does not depend on the
/// other rows.
void dot_rows(const DotRows& p, int64_t begin, int64_t end);

}  // namespace diffattn::cpu::avx512_bf16
