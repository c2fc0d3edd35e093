// SPDX-License-Identifier: Apache-2.0
//
// Packs q, k and v as fp32 operands, in the order in which tiles read them:
//
//   transposed  W rows of k or v as columns    [width][W]                  for q k^T and dO v^T
//   rows        W rows of v or k as rows       [ceil(width / W)][W][W]     for p v and ds k
//   strip       R rows of q or dO, interleaved [width][R]                  for q k^T and dO v^T
//
// bf16 and fp16 are widened; nothing is rounded. Rows outside [first, end) are padding: they are
// not read and become zeros.
#pragma once

#include <cstdint>

#include "kernels/cpu/block.h"

namespace diffattn::cpu {

template <class Isa>
struct FloatPack {
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes, kCols = Isa::kCols, kRows = Isa::kRows;

  /// Operands of a transposed panel and of a packed strip, and the steps of their product.
  static int64_t transposed_operands(int64_t width) { return width * kCols; }
  static int64_t strip_operands(int64_t width) { return width * kRows; }
  static int64_t steps(int64_t width) { return width; }

  /// Packs rows [panel * W, (panel + 1) * W) as columns: out [width][W].
  static void transposed(const Matrix* in, int64_t first, int64_t end, int64_t panel, void* out) {
    float* to = static_cast<float*>(out);
    for (int h = 0; h < kCols; h += kLanes) {
      const int64_t row0 = panel * kCols + h;
      for (int64_t c = 0; c < in->width; c += kLanes) {
        Vec r[kLanes];
        for (int j = 0; j < kLanes; ++j) r[j] = load(in, row0 + j, first, end, c);
        Isa::transpose(r);
        const int64_t count = in->width - c < kLanes ? in->width - c : kLanes;
        for (int j = 0; j < count; ++j) Isa::store(to + (c + j) * kCols + h, r[j]);
      }
    }
  }

  /// Packs the same rows without a transpose: column panels [W keys][W], column_stride apart.
  /// Returns a bit for each odd row and writes odd rows as zeros.
  static uint32_t rows(const Matrix* in, int64_t first, int64_t end, int64_t panel,
                       int64_t column_stride, void* out) {
    float* to = static_cast<float*>(out);
    uint32_t odd = 0;
    for (int j = 0; j < kCols; ++j) {
      const int64_t n = panel * kCols + j;
      Vec check = Isa::zero();
      for (int64_t c = 0; c < in->width; c += kLanes) {
        const Vec x = load(in, n, first, end, c);
        check = Isa::fma(x, Isa::zero(), check);  // NaN if x has a NaN or an infinity
        Isa::store(at(to, column_stride, j, c), x);
      }
      pad(to, column_stride, j, in->width);
      if (Isa::sum(check) == 0.0f) continue;
      odd |= 1u << j;
      for (int64_t c = 0; c < in->width; c += kLanes) {
        Isa::store(at(to, column_stride, j, c), Isa::zero());
      }
    }
    return odd;
  }

  /// Packs the rows of a strip, interleaved: out [width][R]. Each store writes a whole vector; its
  /// lanes beyond R belong to the next step, which overwrites them. So `out` needs a spare vector.
  static void strip(const void* const* rows, Dtype dtype, int64_t width, float* out) {
    for (int64_t c = 0; c < width; c += kLanes) {
      Vec r[kLanes];
      for (int j = 0; j < kLanes; ++j) {
        r[j] = j < kRows && rows[j] != nullptr ? Isa::load_elements(rows[j], dtype, c, width - c)
                                               : Isa::zero();
      }
      Isa::transpose(r);
      const int64_t count = width - c < kLanes ? width - c : kLanes;
      for (int j = 0; j < count; ++j) Isa::store(out + (c + j) * kRows, r[j]);
    }
  }

 private:
  static Vec load(const Matrix* in, int64_t n, int64_t first, int64_t end, int64_t c) {
    if (n < first || n >= end) return Isa::zero();
    return Isa::load_elements(in->data, in->dtype, c + n * in->stride, in->width - c);
  }
  static float* at(float* out, int64_t column_stride, int j, int64_t c) {
    return out + c / kCols * column_stride + j * kCols + c % kCols;
  }
  /// Zeros the second vector of the last column panel if the row ends in the first.
  static void pad(float* out, int64_t column_stride, int j, int64_t width) {
    if (width % kCols != 0 && width % kCols <= kLanes) {
      Isa::store(at(out, column_stride, j, width / kCols * kCols + kLanes), Isa::zero());
    }
  }
};

}  // namespace diffattn::cpu
