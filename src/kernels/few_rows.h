// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "diffattn/kernels/view.h"

namespace diffattn::cpu {

/// One weight matrix that `few_rows` multiplies by.
struct FewRowsMatrix {
  const void* weight = nullptr;  // [outputs, width]
  const void* bias = nullptr;    // [outputs] of the weight's type, or null
  const float* add = nullptr;    // [rows, outputs], or null; may be y itself
  float* y = nullptr;            // [rows, outputs]
  int64_t outputs = 0;
};

/// Computes y = add + x weight^T + bias for a few rows of x and several weight matrices. Reading
/// each matrix once bounds the speed. Products with bfloat16 matrices round x to bfloat16 first, as
/// torch's linear maps of bfloat16 models do. Sums are float32. A row's result depends on neither
/// the number of threads nor the other rows.
struct FewRows {
  const float* x = nullptr;  // [rows, width]
  int64_t rows = 0, width = 0;
  Dtype dtype = Dtype::kFloat32;  // of weights and biases: kFloat32 or kBFloat16
  std::span<const FewRowsMatrix> matrices;
};
void few_rows(const FewRows& params);

/// The same by loops for any CPU, which few_rows takes where it has no faster ones.
void portable_few_rows(const FewRows& params);

/// True where MKL, torch's library for products of float32, uses half of the vector units: on AMD
/// processors with AVX-512 units of 512 bits (Zen 5 and later).
bool mkl_uses_half();

}  // namespace diffattn::cpu
