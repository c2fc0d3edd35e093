// SPDX-License-Identifier: Apache-2.0
//
// The `Source` of Backward for the gradient of the output:
//
//   (7)      dA = dO v^T                           [panels][rows][W], in fp32
//            delta = sum_n p dA of both maps,  dlambda = -delta2
//   (7) (8)  A = p1 - lambda p2,  ds1 = p1 (dA - delta1),  ds2 = -lambda p2 (dA - delta2)
//
// compute() makes dA and delta for all keys; at() then forms A, ds1 and ds2 of a few entries. Heads
// that share map 2 sum their gradients of p2 first:
//
//   (8)      ds2 = -p2 (sum_h lambda_h dA_h - sum_h lambda_h delta2_h)
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
  float* da;            // [panels][rows][W]
  float* shared;        // [panels][rows][W]: sum of lambda dA over earlier heads; only with several
  float* shared_delta;  // [rows]: sum of lambda delta2 over the heads so far
  float* weight2;       // [rows]: factors of e2 in the current key block, without lambda
  float* delta[2];      // [rows]
  float* part[2];       // [rows][lanes]: sum of e dA over one key block
  float* whole[2];      // [rows][lanes]: sum of e dA over all key blocks, at the current ref

  OutputGradient(const BackwardBlock& in, const Maps<Isa>& of, const ValueProduct<Isa>& with,
                 const BackwardRows<Isa>& beside, Carver<Isa>& carver)
      : block(in), maps(of), product(with), rows(beside) {
    const int64_t entries = in.maps.map_panels * maps.rows * kCols;
    da = carver.template take<float>(entries);
    shared = carver.template take<float>(in.maps.heads > 1 ? entries : 0);
    shared_delta = carver.template take<float>(maps.rows);
    weight2 = carver.template take<float>(maps.rows);
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
      // In the steps of sum_of(), so that the difference is exactly 0 for a row that sees one key.
      const float before = maps.head == 0 ? 0.0f : shared_delta[i];
      shared_delta[i] = __builtin_fmaf(maps.row(i).lambda, delta[1][i], before);
      if (i < block.maps.count && rows.row(i).dlambda != nullptr) {
        *rows.row(i).dlambda = -delta[1][i];
      }
    }
  }

  void begin_key_block(int64_t first) {
    if (block.maps.heads == 1) return;
    for (int i = 0; i < maps.rows; ++i) {
      weight2[i] = maps.softmax[1].inverse(i) * maps.catch_up(1, first, i);
    }
  }

  /// Returns A, ds1 and ds2 of one vector of row r, at offset `entry` of the maps. ds2 is 0 before
  /// the last of several heads.
  template <Turn kTurn>
  DIFFATTN_INLINE Values at(int r, int64_t entry) const {
    const Vec e2 = Isa::load(maps.e[1] + entry);
    const Vec p1 = Isa::mul(Isa::load(maps.e[0] + entry), Isa::set1(product.weight[0][r]));
    const Vec p2 = Isa::mul(e2, Isa::set1(product.weight[1][r]));  // includes lambda
    const Vec g = Isa::load(da + entry);                           // dA
    Vec ds2 = Isa::zero();
    if constexpr (kTurn == Turn::kOnly) {
      ds2 = Isa::mul(p2, Isa::sub(Isa::set1(delta[1][r]), g));
    } else if constexpr (kTurn == Turn::kLast) {
      ds2 = Isa::mul(Isa::mul(e2, Isa::set1(weight2[r])),
                     Isa::sub(Isa::set1(shared_delta[r]), sum_of<kTurn>(r, entry)));
    }
    return {Isa::sub(p1, p2), Isa::mul(p1, Isa::sub(g, Isa::set1(delta[0][r]))), ds2};
  }
  Values of_entry(int r, int64_t entry) const {
    if (block.maps.heads == 1) return at<Turn::kOnly>(r, entry);
    return maps.head + 1 < block.maps.heads ? at<Turn::kMiddle>(r, entry)
                                            : at<Turn::kLast>(r, entry);
  }
  /// Adds lambda dA of the current head, which is not the last, to the sum over the heads.
  template <Turn kTurn>
  DIFFATTN_INLINE void share(int r, int64_t entry) {
    Isa::store(shared + entry, sum_of<kTurn>(r, entry));
  }

 private:
  /// Returns the sum of lambda dA over the heads up to the current one.
  template <Turn kTurn>
  DIFFATTN_INLINE Vec sum_of(int r, int64_t entry) const {
    const Vec before = kTurn == Turn::kFirst ? Isa::zero() : Isa::load(shared + entry);
    return Isa::fma(Isa::set1(maps.row(r).lambda), Isa::load(da + entry), before);
  }

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
