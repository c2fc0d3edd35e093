// SPDX-License-Identifier: Apache-2.0
//
// A, ds1 and ds2 of one key block, [rows][kKeyBlock], as operands of the backward's products:
//
//   (7) dv += A^T dO        (9) dk += ds^T q        summed over query rows: multiply_keys()
//   (9) dq += ds k                                  summed over keys: rows()
//
// FloatGradients is for fp32 operands, PairGradients for pairs of bf16. Sums are fp32 in both.
#pragma once

#include <cstdint>

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_size.h"

namespace diffattn::cpu {

enum GradientMatrix : int { kA, kDs1, kDs2, kGradientMatrices };

/// The turn of a head among those that share map 2. Only the last computes ds2, from the sum of
/// lambda dA over all of them.
enum class Turn { kOnly, kFirst, kMiddle, kLast };
constexpr bool has_ds2(Turn turn) { return turn == Turn::kOnly || turn == Turn::kLast; }

/// The matrices as left operands in fp32. One copy serves both kinds of products, because FmaTile
/// broadcasts single elements of its left operand.
template <class Isa>
struct FloatGradients {
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kStride = kMapStride;
  static constexpr bool kTurned = false;  // true if products over query rows give dk^T and dv^T
  float* matrix[kGradientMatrices];       // [rows][kStride]

  void carve(int rows, Carver<Isa>& carver) {
    for (float*& m : matrix) m = carver.template take<float>(rows * kStride);
  }
  /// Stores rows r and r + 1 (r even) of one panel, from column `col` on. x[i][h]: half h of row
  /// r + i.
  void store(int m, int r, int64_t col, const Vec (&x)[2][2]) {
    for (int i = 0; i < 2; ++i) {
      float* to = matrix[m] + (r + i) * kStride + col;
      Isa::store(to, x[i][0]);
      Isa::store(to + kLanes, x[i][1]);
    }
  }
  const float* rows(int m, int r, int64_t col) const { return matrix[m] + r * kStride + col; }

  /// Adds matrix^T right to t [R keys][W], summed over query rows [r, r + count).
  template <class Tile>
  void multiply_keys(Tile& t, int m, int64_t key, int r, int count, const float* right,
                     int64_t stride) const {
    t.template multiply_columns<kStride>(matrix[m] + r * kStride + key, right, stride, count);
  }
};

/// The matrices as operands of two bf16. Products over keys pair columns and products over query
/// rows pair rows, so there are two copies.
template <class Isa>
struct PairGradients {
  using Vec = typename Isa::Vec;
  static constexpr int kStride = kPairMapStride;
  static constexpr bool kTurned = false;
  uint32_t* by_row[kGradientMatrices];  // [rows][kStride]: pairs of columns; unused for A
  uint32_t* by_key[kGradientMatrices];  // [rows / 2][kMapStride]: pairs of rows

  void carve(int rows, Carver<Isa>& carver) {
    carve_rows(rows, carver);
    for (uint32_t*& m : by_key) m = carver.template take<uint32_t>(rows / 2 * kMapStride);
  }
  void store(int m, int r, int64_t col, const Vec (&x)[2][2]) {
    store_rows(m, r, col, x);
    uint32_t* to = by_key[m] + r / 2 * kMapStride + col;
    Isa::store_row_pair(to, x[0][0], x[1][0]);
    Isa::store_row_pair(to + Isa::kLanes, x[0][1], x[1][1]);
  }
  const uint32_t* rows(int m, int r, int64_t col) const {
    return by_row[m] + r * kStride + col / 2;
  }

  template <class Tile>
  void multiply_keys(Tile& t, int m, int64_t key, int r, int count, const uint32_t* right,
                     int64_t stride) const {
    t.template multiply_columns<kMapStride>(by_key[m] + r / 2 * kMapStride + key, right, stride,
                                            count / 2);
  }

 protected:
  void carve_rows(int rows, Carver<Isa>& carver) {
    for (int m = 0; m < kGradientMatrices; ++m) {
      by_row[m] = m == kA ? nullptr : carver.template take<uint32_t>(rows * kStride);
    }
  }
  void store_rows(int m, int r, int64_t col, const Vec (&x)[2][2]) {
    if (m == kA) return;
    uint32_t* to = by_row[m] + r * kStride + col / 2;
    Isa::store_operands(to, x[0][0], x[0][1]);
    Isa::store_operands(to + kStride, x[1][0], x[1][1]);
  }
};

}  // namespace diffattn::cpu
