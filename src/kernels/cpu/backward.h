// SPDX-License-Identifier: Apache-2.0
//
// Backward of one block of query rows against one kv head, as in docs/algorithm.md. Scratch memory
// holds the maps of all keys at once, so the backward requires nothing that the forward saved:
//
//   (1) (2) (3)  e1, e2 and their row sums                                       Maps
//   (4)          O = A v, if the head norm needs O and it was not saved          BackwardRows
//   (6)          dO = epilogue backward of dout                                  BackwardRows
//   (7)          dA = dO v^T,  delta = sum_n p dA of both maps,  dlambda = -delta2   OutputGradient
//   for each key block
//     (7) (8)    A = p1 - lambda p2,  ds1 = p1 (dA - delta1),  ds2 = -lambda p2 (dA - delta2)
//     (7)        dv += A^T dO
//     (9)        dk += ds^T q,  dq += ds k,  dmask += ds1 + ds2
//
// This takes 20 D FLOP per (query, key) pair if Dv = 2 D; all sums are fp32. p is e divided by the
// row sum of (3), not exp(s - lse): where dA - delta cancels, the rounding error of a saved lse
// would be visible. The kernel uses a saved lse only as the first ref. dk and dv are sums over
// blocks: each block adds to the slab that the caller gives it, and the caller sums the slabs in a
// fixed order. The gradient of row statistics uses the same code, with StatsGradient in (7) (8) and
// without dv.
//
// Heads that share map 2 run one after the other and keep e2 of the first. The last one computes
// ds2, dq2 and dk2 for all of them (OutputGradient), so the others take 14 D FLOP.
#pragma once

#include <cstdint>

#include "kernels/cpu/backward_rows.h"
#include "kernels/cpu/block.h"
#include "kernels/cpu/gradient_operands.h"
#include "kernels/cpu/maps.h"
#include "kernels/cpu/value_product.h"

namespace diffattn::cpu {

/// Sums the vector at offset `at` of the tiles over the slabs, in order, and multiplies it by
/// `factor`. Skips slabs in which the strip is uninitialised.
template <class Isa>
typename Isa::Vec add_slabs(const SlabSum* sum, int64_t strip, int64_t at) {
  typename Isa::Vec total = Isa::zero();
  for (int64_t s = 0; s < sum->slabs; ++s) {
    if (sum->begun[s * sum->begun_stride + strip] == 0) continue;
    total = Isa::add(total, Isa::load(sum->tiles + s * sum->tiles_stride + at));
  }
  return Isa::mul(total, Isa::set1(sum->factor));
}

/// Stores rows [n, n + count) of the sum to out[0 .. count - 1]. The rows belong to one strip.
template <class Isa>
void store_sums(const SlabSum* sum, int64_t n, int count, void* const* out) {
  using Vec = typename Isa::Vec;
  constexpr int kLanes = Isa::kLanes;
  const int64_t panels = (sum->width + Isa::kCols - 1) / Isa::kCols, strip = n / Isa::kRows;
  const int step = Isa::Gradients::kTurned ? kLanes : 1;
  for (int64_t c = 0; c < sum->width; c += kLanes) {
    for (int i = 0; i < count; i += step) {
      Vec rows[kLanes];
      if constexpr (Isa::Gradients::kTurned) {
        for (int j = 0; j < kLanes; ++j) {
          rows[j] = add_slabs<Isa>(sum, strip, sum_entry<Isa>(panels, n + i, c + j));
        }
        Isa::transpose(rows);
      } else {
        rows[0] = add_slabs<Isa>(sum, strip, sum_entry<Isa>(panels, n + i, c));
      }
      for (int j = 0; j < step && i + j < count; ++j) {
        Isa::store_elements(out[i + j], sum->dtype, c, sum->width - c, rows[j]);
      }
    }
  }
}

/// `Source` computes the gradients of the maps: OutputGradient or StatsGradient.
template <class Isa, template <class> class Source>
struct Backward {
  using Vec = typename Isa::Vec;
  using Operand = typename Isa::Operand;
  using Tile = typename Isa::Tile;
  static constexpr int kRows = Isa::kRows, kCols = Isa::kCols, kLanes = Isa::kLanes;
  static constexpr int kBlockPanels = kKeyBlock / kCols;
  static constexpr int kTile = kRows * kCols;
  static constexpr int kFirstMatrix = Source<Isa>::kHasValues ? kA : kDs1;
  static_assert(kRows % 2 == 0, "rows are handled two at a time");

  const BackwardBlock& block;
  Carver<Isa> carver;
  Maps<Isa> maps{block.maps, carver};
  ValueProduct<Isa> product{maps, block.value_dim, carver};
  BackwardRows<Isa> rows{block, maps, product, carver};

  // Scratch.
  Source<Isa> gradients{block, maps, product, rows, carver};
  typename Isa::Gradients operands;  // A, ds1, ds2 of one key block
  float* dq[2];                      // [rows][q_stride]

  Backward(const BackwardBlock& in, void* memory)
      : block(in), carver{static_cast<char*>(memory), 0} {
    operands.carve(maps.rows, carver);
    for (float*& x : dq) x = carver.template take<float>(maps.rows * rows.q_stride);
  }

  static int64_t scratch(int block_rows, int heads, int64_t map_panels, int64_t d, int64_t dv) {
    BackwardBlock sizes{};
    sizes.maps.count = block_rows;
    sizes.maps.heads = heads;
    sizes.maps.map_panels = map_panels;
    sizes.maps.head_dim = d;
    sizes.value_dim = dv;
    return Backward(sizes, nullptr).carver.used;
  }

  void run() {
    const int heads = block.maps.heads;
    if (heads == 1) return run_head<Turn::kOnly>(0);
    if constexpr (Source<Isa>::kHasValues) {
      run_head<Turn::kFirst>(0);
      for (int h = 1; h + 1 < heads; ++h) run_head<Turn::kMiddle>(h);
      run_head<Turn::kLast>(heads - 1);
    }
  }

 private:
  template <Turn kTurn>
  void run_head(int h) {
    const bool together = kTogether && !rows.needs_maps();
    if (together) {
      if constexpr (kTogether) compute_together(h);
    } else {
      maps.compute_all(h);  // (1) (2) (3)
      rows.prepare();       // (4) (6)
      gradients.compute();  // (7)
    }
    for (int m = 0; m < maps_of(kTurn); ++m) fill_zero(dq[m], maps.rows * rows.q_stride);
    const int64_t blocks = (maps.panels + kBlockPanels - 1) / kBlockPanels;
    for (int64_t b = 0; b < blocks; ++b) {  // start with the key block that is still in L2
      const int64_t first = (together ? blocks - 1 - b : b) * kBlockPanels;
      run_key_block<kTurn>(first, maps.end_of_key_block(first));
    }
    if (block.products) store_dq(maps_of(kTurn));
  }

  /// Returns the number of maps whose gradients a head adds to dq and dk.
  static constexpr int maps_of(Turn turn) { return has_ds2(turn) ? 2 : 1; }

  /// Memory traffic limits AMX, so there dA is computed together with the maps.
  static constexpr bool kTogether = Isa::kOverlap && Source<Isa>::kHasValues;

  /// Computes (1) (2) (3) (6) (7), one key block at a time, so that the e that (7) reads is in L2.
  void compute_together(int h) {
    maps.begin(h);
    rows.prepare();
    gradients.begin();
    int64_t first, end;
    maps.range(first, end);
    maps.compute(first, end, [&](int64_t p, int64_t last) { gradients.add_key_block(p, last); });
    maps.set_norm(rows.norm);
    if (maps.moved) {  // e has changed since add_key_block() read it, so compute (7) again
      gradients.begin();
      for (int64_t p = 0; p < maps.panels; p += kBlockPanels) {
        gradients.add_key_block(p, maps.end_of_key_block(p));
      }
    }
    gradients.finish();
  }

  static void fill_zero(float* x, int64_t count) {
    for (int64_t i = 0; i < count; i += kLanes) Isa::store(x + i, Isa::zero());
  }

  template <Turn kTurn>
  void run_key_block(int64_t first, int64_t last) {
    product.set_weights(rows.norm, first);
    gradients.begin_key_block(first);
    for (int s = 0; s < maps.strips; ++s) {
      for (int64_t p = first; p < last; ++p) {
        switch (maps.kind(p, s)) {
          case kTileUnseen: clear_tile((p - first) * kCols, s); break;
          case kTileFull: gradient_tile<kTurn, false>(p, s, first); break;
          case kTileMasked: gradient_tile<kTurn, true>(p, s, first); break;
        }
      }
      // The last strip of keys may reach beyond the last panel.
      if (last - first < kBlockPanels) clear_tile((last - first) * kCols, s);
    }
    rows.add_dmask(gradients, first, last);
    if (!block.products) return;
    add_key_gradients<kTurn>(first, last);
    if constexpr (Source<Isa>::kHasValues) rows.add_odd_dout(gradients, first, last);
    add_dq(maps_of(kTurn), first, last);
    rows.add_odd_keys(gradients, maps_of(kTurn), dq, first, last);
  }

  void clear_tile(int64_t col, int s) {
    const Vec none[2][2] = {{Isa::zero(), Isa::zero()}, {Isa::zero(), Isa::zero()}};
    for (int m = kFirstMatrix; m < kGradientMatrices; ++m) {
      for (int i = 0; i < kRows; i += 2) operands.store(m, s * kRows + i, col, none);
    }
  }

  /// Computes (7) (8): stores A, ds1 and ds2 of one tile as operands.
  template <Turn kTurn, bool kMasked>
  void gradient_tile(int64_t p, int s, int64_t first) {
    const int64_t col = (p - first) * kCols;
    for (int i = 0; i < kRows; i += 2) {
      Vec a[2][2], ds1[2][2], ds2[2][2];
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k) {
        const int r = s * kRows + i + k;
        const uint32_t bits = maps.seen_bits[p * maps.rows + r];
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          const int64_t entry = (p * maps.rows + r) * kCols + h * kLanes;
          const auto x = gradients.template at<kTurn>(r, entry);
          if constexpr (!has_ds2(kTurn)) gradients.template share<kTurn>(r, entry);
          a[k][h] = x.a;
          ds1[k][h] = x.ds1;
          ds2[k][h] = x.ds2;
          if constexpr (kMasked) {  // a hidden entry is 0 * NaN if the row's weight or delta is NaN
            const uint32_t seen = bits >> (h * kLanes);
            a[k][h] = Isa::select(seen, x.a, Isa::zero());
            ds1[k][h] = Isa::select(seen, x.ds1, Isa::zero());
            ds2[k][h] = Isa::select(seen, x.ds2, Isa::zero());
          }
        }
      }
      const int r = s * kRows + i;
      if constexpr (Source<Isa>::kHasValues) operands.store(kA, r, col, a);
      operands.store(kDs1, r, col, ds1);
      if constexpr (has_ds2(kTurn)) operands.store(kDs2, r, col, ds2);
    }
  }

  /// Adds A^T dO to dv and ds^T q to dk, one strip of R keys at a time, over the query strips that
  /// see it.
  template <Turn kTurn>
  void add_key_gradients(int64_t first, int64_t last) {
    const int64_t keys = (last - first) * kCols;
    for (int64_t key = 0; key < keys; key += kRows) {
      const int64_t p0 = first + key / kCols;
      int64_t p1 = first + (key + kRows - 1) / kCols;
      p1 = p1 < last ? p1 : last - 1;
      const auto sees = [&](int s) {
        return maps.kind(p0, s) != kTileUnseen || maps.kind(p1, s) != kTileUnseen;
      };
      int begin = 0, end = maps.strips;
      while (begin < end && !sees(begin)) ++begin;
      while (end > begin && !sees(end - 1)) --end;
      if (begin == end) continue;
      const int64_t strip = ((maps.origin + first) * kCols + key) / kRows;
      const int from = begin * kRows, count = (end - begin) * kRows;
      const bool begun = block.begun[strip] != 0;
      block.begun[strip] = 1;
      const Keys part{key, from, count, begun};
      if constexpr (Source<Isa>::kHasValues) {
        add_keys(kA, part, rows.dout, block.dv + strip * rows.dout.panels * kTile);
      }
      if constexpr (!has_ds2(kTurn)) {  // a later head adds to dk2
        if (!begun) {
          fill_zero(block.dk[1] + strip * rows.q[1].panels * kTile, rows.q[1].panels * kTile);
        }
      }
      for (int m = 0; m < maps_of(kTurn); ++m) {
        add_keys(kDs1 + m, part, rows.q[m], block.dk[m] + strip * rows.q[m].panels * kTile);
      }
    }
  }

  /// A strip of keys, the query rows [from, from + count) that see it, and whether its sums are
  /// initialised.
  struct Keys {
    int64_t key;
    int from, count;
    bool begun;
  };
  void add_keys(int m, const Keys& part, const SummedRows<Isa>& other, float* out) {
    for (int64_t c = 0; c < other.panels; ++c) {
      Tile t;
      if (part.begun) {
        t.begin_sum(out + c * kTile, kCols);
      } else {
        t.zero();
      }
      operands.multiply_keys(t, m, part.key, part.from, part.count, other.at(part.from, c * kCols),
                             other.operand_stride());
      if (part.begun) {
        t.end_sum(out + c * kTile, kCols);
      } else {
        t.store(out + c * kTile, kCols);
      }
    }
  }

  /// Adds ds k to dq for the first `count` maps. For each strip, multiplies each run of adjacent
  /// visible panels at once.
  void add_dq(int count, int64_t first, int64_t last) {
    const int64_t padded = block.maps.keys->panels * kCols;
    for (int m = 0; m < count; ++m) {
      const Operand* k = static_cast<const Operand*>(block.maps.keys->k[m]);
      for (int64_t c = 0; c < rows.q[m].panels; ++c) {
        for (int s = 0; s < maps.strips; ++s) {
          float* out = dq[m] + s * kRows * rows.q_stride + c * kCols;
          for (int64_t begin = first; begin < last;) {
            int64_t end = begin;
            while (end < last && maps.kind(end, s) != kTileUnseen) ++end;
            if (end > begin) {
              const int64_t key = (maps.origin + begin) * kCols;
              Tile t;
              t.begin_sum(out, rows.q_stride);
              const Operand* right = k + (c * padded + key) / Isa::kPair * kCols;
              t.template multiply_rows<Isa::Gradients::kStride>(
                  operands.rows(kDs1 + m, s * kRows, (begin - first) * kCols), right,
                  Isa::Pack::steps(maps.run_columns(s, begin, end)),
                  right + kKeyBlock / Isa::kPair * kCols + maps.asked_half(s));
              t.end_sum(out, rows.q_stride);
            }
            begin = end + 1;
          }
        }
      }
    }
  }

  void store_dq(int count) {
    const int64_t width = block.maps.head_dim;
    for (int i = 0; i < block.maps.count; ++i) {
      for (int m = 0; m < count; ++m) {
        if (rows.row(i).dq[m] == nullptr) continue;
        const Vec scale = Isa::set1(block.scale[m]);
        for (int64_t c = 0; c < width; c += kLanes) {
          const Vec x = Isa::load(dq[m] + i * rows.q_stride + c);
          Isa::store_elements(rows.row(i).dq[m], block.dq_dtype[m], c, width - c,
                              Isa::mul(x, scale));
        }
      }
    }
  }
};

}  // namespace diffattn::cpu
