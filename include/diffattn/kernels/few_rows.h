// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "diffattn/kernels/view.h"

namespace diffattn::cpu {

/// One of the matrices that a few rows meet.
struct FewRowsMatrix {
  const void* weight = nullptr;  // [outputs, width]
  const void* bias = nullptr;    // [outputs] of the weight's type; null: none
  const float* add = nullptr;    // [rows, outputs]; null: nothing is added. May be y itself
  float* y = nullptr;            // [rows, outputs]
  int64_t outputs = 0;
};

/// y = add + x weight^T + bias for a few rows of x and several matrices, bound by reading these
/// once. Sums are float32. Results depend neither on the number of threads nor on the other rows.
struct FewRows {
  const float* x = nullptr;  // [rows, width]
  int64_t rows = 0, width = 0;
  Dtype dtype = Dtype::kFloat32;  // of the matrices: kFloat32 or kBFloat16
  std::span<const FewRowsMatrix> matrices;
};
void few_rows(const FewRows& params);

}  // namespace diffattn::cpu
