// SPDX-License-Identifier: Apache-2.0
//
// Step (4) for a block of query rows: acc [rows][Dv] += weights v over the panels that Maps holds.
//
//   for each run of key blocks (one, or four with AMX)
//     for each visible tile (strip, panel):
//       p = a1 e1 - a2 e2                      [R][W], stored as left operands
//     for each column panel of v and each strip:
//       acc += p v                             [R][W] accumulators per product
//
// a1, a2 [rows] are 1 / l1 and lambda / l2, rescaled to the ref of each key block. Sums are fp32; p
// is fp32, or rounded to bf16 if operands are pairs.
#pragma once

#include <cstdint>

#include "kernels/cpu/block.h"
#include "kernels/cpu/maps.h"

namespace diffattn::cpu {

/// The weights that multiply v: A = p1 - lambda p2, or one of the maps alone.
enum class Weights { kDifference, kMap1, kMap2 };

template <class Isa>
struct ValueProduct {
  using Vec = typename Isa::Vec;
  using Operand = typename Isa::Operand;
  static constexpr int kRows = Isa::kRows, kCols = Isa::kCols, kLanes = Isa::kLanes;
  static constexpr int kBlockPanels = kKeyBlock / kCols;
  /// Key blocks per product. AMX takes four at once, because every product loads and stores the
  /// accumulators of O.
  static constexpr int kRunBlocks = Isa::kOverlap ? 4 : 1, kRunPanels = kRunBlocks * kBlockPanels;
  static constexpr int kStride = kRunBlocks * kKeyBlock / Isa::kPair + 16;  // row stride of p
  static constexpr int kPanelOperands = kCols / Isa::kPair;  // operands per panel in a row of p

  const Maps<Isa>& maps;
  const int64_t value_dim;
  const int64_t column_panels = (value_dim + kCols - 1) / kCols;
  const int64_t acc_stride = column_panels * kCols + 16;  // an odd number of cache lines

  // Scratch.
  Operand* p;        // [rows][kStride]: the weights of one run of key blocks
  float* weight[2];  // [rows]: factors a1 and a2 in the current key block

  ValueProduct(const Maps<Isa>& of, int64_t dv, Carver<Isa>& carver) : maps(of), value_dim(dv) {
    p = carver.template take<Operand>(maps.rows * kStride);
    for (float*& w : weight) w = carver.template take<float>(maps.rows);
  }

  int64_t acc_floats() const { return maps.rows * acc_stride; }

  /// Sets `weight` to norm, rescaled to the ref of the key block that starts at panel `first`.
  void set_weights(const float* const norm[2], int64_t first) {
    for (int m = 0; m < 2; ++m) {
      for (int i = 0; i < maps.rows; ++i) weight[m][i] = norm[m][i] * maps.catch_up(m, first, i);
    }
  }

  /// Adds the product to acc. norm [2][rows]: factors of e1 and e2 at the current ref.
  template <Weights kWeights>
  void add(const float* const norm[2], float* acc) {
    for (int64_t first = 0; first < maps.panels; first += kRunPanels) {
      const int64_t last = first + kRunPanels < maps.panels ? first + kRunPanels : maps.panels;
      for (int64_t p0 = first; p0 < last; p0 += kBlockPanels) {
        set_weights(norm, p0);
        for (int s = 0; s < maps.strips; ++s) {
          for (int64_t panel = p0; panel < maps.end_of_key_block(p0); ++panel) {
            if (maps.kind(panel, s) != kTileUnseen) weigh<kWeights>(panel, s, first);
          }
        }
        add_odd_rows<kWeights>(p0, maps.end_of_key_block(p0), acc);
      }
      multiply(first, last, acc);
    }
  }

 private:
  template <Weights kWeights>
  static Vec combine(Vec e1, Vec a1, Vec e2, Vec a2) {
    if constexpr (kWeights == Weights::kMap1) return Isa::mul(e1, a1);
    if constexpr (kWeights == Weights::kMap2) return Isa::mul(e2, a2);
    return Isa::sub(Isa::mul(e1, a1), Isa::mul(e2, a2));  // no FMA: equal maps give exactly 0
  }

  /// Stores the weights of one tile as left operands.
  template <Weights kWeights>
  void weigh(int64_t panel, int s, int64_t first) {
    const float *e1 = maps.tile(0, panel, s), *e2 = maps.tile(1, panel, s);
    Operand* out = p + s * kRows * kStride + (panel - first) * kPanelOperands;
    for (int i = 0; i < kRows; ++i) {
      const Vec a1 = Isa::set1(weight[0][s * kRows + i]), a2 = Isa::set1(weight[1][s * kRows + i]);
      Vec x[2];
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const int at = i * kCols + h * kLanes;
        x[h] = combine<kWeights>(Isa::load(e1 + at), a1, Isa::load(e2 + at), a2);
      }
      Isa::store_operands(out + i * kStride, x[0], x[1]);
    }
  }

  void multiply(int64_t first, int64_t last, float* acc) {
    for (int64_t c = 0; c < column_panels; ++c) {
      for (int s = 0; s < maps.strips; ++s) {
        for (int64_t begin = first; begin < last;) {  // runs of visible panels
          int64_t end = begin;
          while (end < last && maps.kind(end, s) != kTileUnseen) ++end;
          if (end > begin) product_tile(c, s, begin, end, first, acc);
          begin = end + 1;
        }
      }
    }
  }

  void product_tile(int64_t c, int s, int64_t begin, int64_t end, int64_t first, float* acc) {
    // The rounding of p to bf16 exceeds that of the sums.
    constexpr int64_t kPanels = Isa::kPair == 1 ? kSumKeys / kCols : kRunPanels;
    for (; begin + kPanels < end; begin += kPanels) {
      add_product(c, s, begin, begin + kPanels, first, acc);
    }
    add_product(c, s, begin, end, first, acc);
  }

  void add_product(int64_t c, int s, int64_t begin, int64_t end, int64_t first, float* acc) {
    const int64_t padded = maps.block.keys->panels * kCols;
    const int64_t key = (maps.origin + begin) * kCols;
    const Operand* v =
        static_cast<const Operand*>(maps.block.keys->v) + (c * padded + key) / Isa::kPair * kCols;
    float* out = acc + s * kRows * acc_stride + c * kCols;
    typename Isa::Tile t;
    t.begin_sum(out, acc_stride);
    t.template multiply_rows<kStride>(p + s * kRows * kStride + (begin - first) * kPanelOperands, v,
                                      Isa::Pack::steps(maps.run_columns(s, begin, end)),
                                      v + kKeyBlock / Isa::kPair * kCols + maps.asked_half(s));
    t.end_sum(out, acc_stride);
  }

  /// Adds the odd rows of v, which are zero in the packed v, to the query rows that see them. In a
  /// product, 0 * NaN would carry a NaN to every row.
  template <Weights kWeights>
  void add_odd_rows(int64_t first, int64_t last, float* acc) {
    const Matrix& v = maps.block.keys->v_rows;
    for (int64_t panel = first; panel < last; ++panel) {
      const uint32_t odd = maps.block.keys->odd_v[maps.origin + panel];
      for (int j = 0; j < kCols; ++j) {
        if ((odd >> j & 1u) == 0) continue;
        const int64_t at = ((maps.origin + panel) * kCols + j) * v.stride;
        for (int i = 0; i < maps.rows; ++i) {
          if (!maps.sees(panel, i, j)) continue;
          const int64_t entry = (panel * maps.rows + i) * kCols + j;
          const Vec x = combine<kWeights>(Isa::set1(maps.e[0][entry]), Isa::set1(weight[0][i]),
                                          Isa::set1(maps.e[1][entry]), Isa::set1(weight[1][i]));
          for (int64_t c = 0; c < value_dim; c += kLanes) {
            float* out = acc + i * acc_stride + c;
            const Vec row = Isa::load_elements(v.data, v.dtype, at + c, value_dim - c);
            Isa::store(out, Isa::fma(x, row, Isa::load(out)));
          }
        }
      }
    }
  }
};

}  // namespace diffattn::cpu
