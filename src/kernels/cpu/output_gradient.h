// SPDX-License-Identifier: Apache-2.0
//
// The `Source` of Backward for the gradient of the output:
//
//   (7)      dA = dO v^T                           [panels][rows][W], in fp32
//            delta = sum_n p dA of both maps,  dlambda = -delta2
//   (7) (8)  A = p1 - lambda p2,  ds1 = p1 (dA - delta1),  ds2 = -lambda p2 (dA - delta2)
//
// compute() makes dA and delta for all keys; at() then forms A, ds1 and ds2 of a few entries.
#pragma once

#include <cstdint>

#include "kernels/cpu/backward_rows.h"
#include "kernels/cpu/block.h"
#include "kernels/cpu/maps.h"
#include "kernels/cpu/value_product.h"

namespace diffattn::cpu {

template <class Isa>
struct OutputGradient {
  using Vec = typename Isa::Vec;
  using Operand = typename Isa::Operand;
  using Tile = typename Isa::Tile;
  static constexpr bool kHasValues = true;  // true if there are v and dv
  static constexpr int kRows = Isa::kRows, kCols = Isa::kCols, kLanes = Isa::kLanes;
  static constexpr int kBlockPanels = kKeyBlock / kCols;
  struct Values {
    Vec a, ds1, ds2;
  };

  const BackwardBlock& block;
  const Maps<Isa>& maps;
  const ValueProduct<Isa>& product;  // for the weights of the current key block
  const BackwardRows<Isa>& rows;

  // Scratch.
  float* da;        // [panels][rows][W]
  float* delta[2];  // [rows]
  float* part[2];   // [rows][lanes]: sum of e dA over one key block
  float* whole[2];  // [rows][lanes]: sum of e dA over all key blocks, at the current ref

  OutputGradient(const BackwardBlock& in, const Maps<Isa>& of, const ValueProduct<Isa>& with,
                 const BackwardRows<Isa>& beside, Carver<Isa>& carver)
      : block(in), maps(of), product(with), rows(beside) {
    da = carver.template take<float>(in.maps.map_panels * maps.rows * kCols);
    for (int m = 0; m < 2; ++m) {
      delta[m] = carver.template take<float>(maps.rows);
      part[m] = carver.template take<float>(maps.rows * kLanes);
      whole[m] = carver.template take<float>(maps.rows * kLanes);
    }
  }

  /// Step (7): dA, delta and dlambda.
  void compute() {
    begin();
    // From the last key block to the first: e of the last blocks is still in L2, and step (8) then
    // finds dA and e of the first blocks there.
    const int64_t blocks = (maps.panels + kBlockPanels - 1) / kBlockPanels;
    for (int64_t b = blocks - 1; b >= 0; --b) {
      add_key_block(b * kBlockPanels, maps.end_of_key_block(b * kBlockPanels));
    }
    finish();
  }
  void begin() {
    for (int m = 0; m < 2; ++m) fill_zero(whole[m], maps.rows * kLanes);
  }
  void add_key_block(int64_t first, int64_t last) {
    for (int m = 0; m < 2; ++m) fill_zero(part[m], maps.rows * kLanes);
    compute_key_block(first, last);
    for (int m = 0; m < 2; ++m) {
      for (int i = 0; i < maps.rows; ++i) {
        const int at = i * kLanes;
        Isa::store(whole[m] + at,
                   Isa::fma(Isa::load(part[m] + at), Isa::set1(maps.catch_up(m, first, i)),
                            Isa::load(whole[m] + at)));
      }
    }
  }
  /// Computes delta and dlambda from the sums over all key blocks. A row that sees one key has p =
  /// 1 there, so delta is dA itself. Taken from memory, it makes dA - delta exactly 0.
  void finish() {
    for (int i = 0; i < maps.rows; ++i) {
      const int64_t only = maps.only_entry(i);
      for (int m = 0; m < 2; ++m) {
        const float sum = Isa::sum(Isa::load(whole[m] + i * kLanes));
        delta[m][i] = only >= 0 ? da[only] : sum * maps.softmax[m].inverse(i);
      }
      if (i < block.maps.count && block.rows[i].dlambda != nullptr) {
        *block.rows[i].dlambda = -delta[1][i];
      }
    }
  }

  void begin_key_block(int64_t) {}

  /// Returns A, ds1 and ds2 of one vector of row r, at offset `entry` of the maps.
  Values at(int r, int64_t entry) const {
    const Vec p1 = Isa::mul(Isa::load(maps.e[0] + entry), Isa::set1(product.weight[0][r]));
    const Vec p2 = Isa::mul(Isa::load(maps.e[1] + entry), Isa::set1(product.weight[1][r]));
    const Vec g = Isa::load(da + entry);  // dA; p2 above includes lambda
    return {Isa::sub(p1, p2), Isa::mul(p1, Isa::sub(g, Isa::set1(delta[0][r]))),
            Isa::mul(p2, Isa::sub(Isa::set1(delta[1][r]), g))};
  }

 private:
  static void fill_zero(float* x, int64_t count) {
    for (int64_t i = 0; i < count; i += kLanes) Isa::store(x + i, Isa::zero());
  }

  /// Computes dA of panels [first, last) and adds e dA to `part`.
  void compute_key_block(int64_t first, int64_t last) {
    const int64_t panel = Isa::Pack::transposed_operands(block.value_dim);
    const int64_t steps = Isa::Pack::steps(block.value_dim);
    const auto left = [&](int s) {
      return rows.dout_packed + s * Isa::Pack::strip_operands(block.value_dim);
    };
    const auto right = [&](int64_t p) {
      return static_cast<const Operand*>(block.maps.keys->vt) + (maps.origin + p) * panel;
    };
    if constexpr (Isa::kOverlap) {
      maps.overlap(
          first, last,
          [&](Tile& t, int64_t p, int s) {
            t.zero();
            t.multiply(left(s), steps, right(p), kCols, steps);
          },
          [&](int64_t p, int s) { return da_of(p, s); },
          [&](auto half, int64_t p, int s) {
            finish_tile<half.value>(typename Tile::Stored{da_of(p, s)}, p, s);
          });
    } else {
      for (int64_t p = first; p < last; ++p) {
        for (int s = 0; s < maps.strips; ++s) {
          if (maps.kind(p, s) == kTileUnseen) continue;
          Tile t;
          t.zero();
          t.multiply_packed(left(s), right(p), steps, right(p) + panel + maps.asked_half(s));
          finish_tile<TileHalf::kBoth>(t, p, s);
        }
      }
    }
  }

  float* da_of(int64_t p, int s) const { return da + (p * maps.rows + s * kRows) * kCols; }

  template <TileHalf kHalf, class Sums>
  DIFFATTN_INLINE void finish_tile(const Sums& t, int64_t p, int s) {
    if (maps.kind(p, s) == kTileFull) {
      add_tile<kHalf, false>(t, p, s);
    } else {
      add_tile<kHalf, true>(t, p, s);
    }
  }

  template <TileHalf kHalf, bool kMasked, class Sums>
  DIFFATTN_INLINE void add_tile(const Sums& t, int64_t p, int s) {
    constexpr bool kInPlace = Isa::kOverlap && !kMasked;  // the tile store wrote dA already
    float* out = da_of(p, s);
    const float* e[2] = {maps.tile(0, p, s), maps.tile(1, p, s)};
    const uint32_t* bits = maps.seen_bits + p * maps.rows + s * kRows;
    constexpr int kFrom = first_row<kRows>(kHalf), kTo = end_row<kRows>(kHalf);
#pragma GCC unroll 16
    for (int i = kFrom; i < kTo; ++i) {
      Vec x[2];
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        x[h] = t.row(i, h);
        // v or dO may be NaN at a hidden entry
        if constexpr (kMasked) x[h] = Isa::select(bits[i] >> (h * kLanes), x[h], Isa::zero());
        if constexpr (!kInPlace) Isa::store(out + i * kCols + h * kLanes, x[h]);
      }
#pragma GCC unroll 2
      for (int m = 0; m < 2; ++m) {
        float* sum = part[m] + (s * kRows + i) * kLanes;
        const Vec e0 = Isa::load(e[m] + i * kCols), e1 = Isa::load(e[m] + i * kCols + kLanes);
        Isa::store(sum, Isa::fma(e1, x[1], Isa::fma(e0, x[0], Isa::load(sum))));
      }
    }
  }
};

}  // namespace diffattn::cpu
