// SPDX-License-Identifier: Apache-2.0
//
// Statistics of the rows of A over the columns they see (`enum Stat` in params.h), from maps of all
// keys, in fp32:
//
//   (1) (2) (3)  e1, e2 of all keys                                    Maps
//   for each key block, row and vector of visible entries
//     p1 = e1 / l1,  p2 = e2 / l2,  A = p1 - lambda p2
//     add them to the row's sums (one per vector lane) and counts
//   stats [rows][kStatCount]
#pragma once

#include <cstdint>

#include "kernels/cpu/block.h"
#include "kernels/cpu/maps.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/value_product.h"

namespace diffattn::cpu {

/// Returns the natural logarithm of x > 0 with a relative error of about 1e-7: m = x / 2^k,
/// t = (m - 1) / (m + 1), log m = 2 (t + t^3/3 + t^5/5 + ...), |t| <= 0.172. Finite for x = 0.
template <class Isa>
typename Isa::Vec natural_log(typename Isa::Vec x) {
  using Vec = typename Isa::Vec;
  Vec k;
  const Vec m = Isa::mantissa(x, &k), one = Isa::set1(1.0f);
  const Vec t = Isa::div(Isa::sub(m, one), Isa::add(m, one));
  const Vec t2 = Isa::mul(t, t);
  Vec p = Isa::set1(2.0f / 9.0f);
  p = Isa::fma(p, t2, Isa::set1(2.0f / 7.0f));
  p = Isa::fma(p, t2, Isa::set1(2.0f / 5.0f));
  p = Isa::fma(p, t2, Isa::set1(2.0f / 3.0f));
  p = Isa::fma(p, t2, Isa::set1(2.0f));
  return Isa::fma(k, Isa::set1(static_cast<float>(kLn2)), Isa::mul(p, t));
}

/// Computes the statistics of all rows of a block whose maps are complete.
template <class Isa>
struct RowStats {
  using Vec = typename Isa::Vec;
  static constexpr int kRows = Isa::kRows, kCols = Isa::kCols, kLanes = Isa::kLanes;
  static constexpr int kBlockPanels = kKeyBlock / kCols;
  static constexpr uint32_t kAllLanes = (uint32_t{1} << kLanes) - 1;
  static constexpr float kFocusThreshold = 0.5f, kCoverageThreshold = 0.1f;
  enum Sum : int { kAbs, kSquare, kNegative, kPlogp, kCancelled, kOverlap, kMaximum, kSums };

  /// One vector of entries of a row.
  struct Entries {
    Vec p1, p2, scaled_p2, a;  // scaled_p2: lambda p2
  };
  /// Counts over the columns that a row sees.
  struct Counts {
    int64_t seen, sparse, focus, coverage;
    int64_t first;  // offset of the first visible entry; -1 until it is found
    float sink;     // A at that entry
  };

  const Maps<Isa>& maps;
  ValueProduct<Isa>& product;

  // Scratch.
  float* p2_weight;  // [rows]: factor from e2 to p2; product.weight[1] includes lambda
  float* sums;       // [rows][kSums][lanes]
  Counts* counts;    // [rows]

  RowStats(const Maps<Isa>& of, ValueProduct<Isa>& with, Carver<Isa>& carver)
      : maps(of), product(with) {
    p2_weight = carver.template take<float>(maps.rows);
    sums = carver.template take<float>(maps.rows * kSums * kLanes);
    counts = carver.template take<Counts>(maps.rows);
  }

  /// Computes the statistics of all rows. norm [2][rows]: 1 / l1 and lambda / l2.
  void compute(const float* const norm[2], float sparse_threshold) {
    for (int r = 0; r < maps.rows; ++r) {
      counts[r] = {0, 0, 0, 0, -1, 0.0f};
      for (int k = 0; k < kSums; ++k) {
        Isa::store(sum(r, k), k == kMaximum ? Isa::set1(-__builtin_inff()) : Isa::zero());
      }
    }
    for_each_key_block([&](int64_t first, int64_t last) {
      product.set_weights(norm, first);
      begin_key_block(first);
      for (int r = 0; r < maps.block.count; ++r) add_row(r, first, last, sparse_threshold);
    });
  }

  /// Sets p2_weight for the key block that starts at panel `first`.
  void begin_key_block(int64_t first) {
    for (int r = 0; r < maps.rows; ++r) {
      p2_weight[r] = maps.softmax[1].inverse(r) * maps.catch_up(1, first, r);
    }
  }

  template <class Body>
  void for_each_key_block(const Body& body) const {
    for (int64_t p = 0; p < maps.panels; p += kBlockPanels) {
      body(p, p + kBlockPanels < maps.panels ? p + kBlockPanels : maps.panels);
    }
  }

  /// Calls body(entry, bits) for each vector of row r in panels [first, last) that has visible
  /// entries. bits: the visible lanes.
  template <class Body>
  void for_each_seen(int r, int64_t first, int64_t last, const Body& body) const {
    for (int64_t p = first; p < last; ++p) {
      const TileKind kind = maps.kind(p, r / kRows);
      if (kind == kTileUnseen) continue;
      const uint32_t bits = kind == kTileFull ? ~0u : maps.seen_bits[p * maps.rows + r];
      for (int h = 0; h < 2; ++h) {
        const uint32_t seen = bits >> (h * kLanes) & kAllLanes;
        if (seen != 0) body((p * maps.rows + r) * kCols + h * kLanes, seen);
      }
    }
  }

  /// Returns one vector of row r, at offset `entry` of the maps.
  Entries at(int r, int64_t entry) const {
    const Vec e1 = Isa::load(maps.e[0] + entry), e2 = Isa::load(maps.e[1] + entry);
    Entries x;
    x.p1 = Isa::mul(e1, Isa::set1(product.weight[0][r]));
    x.scaled_p2 = Isa::mul(e2, Isa::set1(product.weight[1][r]));
    x.p2 = Isa::mul(e2, Isa::set1(p2_weight[r]));
    x.a = Isa::sub(x.p1, x.scaled_p2);
    return x;
  }

  float total(int r, int k) const { return Isa::sum(Isa::load(sum(r, k))); }
  float maximum(int r) const { return Isa::maximum(Isa::load(sum(r, kMaximum))); }
  /// Returns log S - sum |A| log |A| / S with S = sum |A|.
  float entropy(int r) const {
    const double s = total(r, kAbs);
    return s > 0.0 ? static_cast<float>(__builtin_log(s) - total(r, kPlogp) / s) : 0.0f;
  }

  void store(int r, float* out) const {
    const Counts& c = counts[r];
    const double share = c.seen > 0 ? 1.0 / static_cast<double>(c.seen) : 0.0;
    const float s = total(r, kAbs);
    const float nan = s == s ? 0.0f : s;  // max and min lose NaN, so add it to their results
    out[kStatVisible] = static_cast<float>(c.seen);
    out[kStatAbsSum] = s;
    out[kStatSquareSum] = total(r, kSquare);
    out[kStatNegativeMass] = total(r, kNegative) + nan;
    out[kStatMax] = c.seen > 0 ? maximum(r) + nan : 0.0f;
    out[kStatSparse] = static_cast<float>(static_cast<double>(c.sparse) * share);
    out[kStatFocus] = static_cast<float>(static_cast<double>(c.focus) * share);
    out[kStatCoverage] = static_cast<float>(static_cast<double>(c.coverage) * share);
    out[kStatEntropy] = entropy(r);
    out[kStatSinkMass] = c.sink;
    out[kStatCancelled] = total(r, kCancelled) + nan;
    out[kStatOverlap] = total(r, kOverlap) + nan;
  }

 private:
  float* sum(int r, int k) const { return sums + (r * kSums + k) * kLanes; }

  void add_row(int r, int64_t first, int64_t last, float sparse_threshold) {
    Counts& c = counts[r];
    Vec s[kSums];
    for (int k = 0; k < kSums; ++k) s[k] = Isa::load(sum(r, k));
    const Vec zero = Isa::zero(), lowest = Isa::set1(-__builtin_inff());
    for_each_seen(r, first, last, [&](int64_t entry, uint32_t seen) {
      const Entries x = at(r, entry);
      const Vec negated = Isa::sub(zero, x.a), magnitude = Isa::max(x.a, negated);
      s[kAbs] = Isa::add(s[kAbs], magnitude);
      s[kSquare] = Isa::fma(x.a, x.a, s[kSquare]);
      s[kNegative] = Isa::add(s[kNegative], Isa::max(negated, zero));
      s[kPlogp] = Isa::fma(magnitude, natural_log<Isa>(magnitude), s[kPlogp]);
      s[kCancelled] = Isa::add(s[kCancelled], Isa::min(x.p1, Isa::max(x.scaled_p2, zero)));
      s[kOverlap] = Isa::add(s[kOverlap], Isa::min(x.p1, x.p2));
      s[kMaximum] = Isa::max(Isa::select(seen, x.a, lowest), s[kMaximum]);
      const auto count = [&](uint32_t bits) { return __builtin_popcount(bits & seen); };
      c.seen += __builtin_popcount(seen);
      c.sparse += count(Isa::greater_bits(Isa::set1(sparse_threshold), magnitude));
      c.focus += count(Isa::greater_bits(magnitude, Isa::set1(kFocusThreshold)));
      c.coverage += count(Isa::greater_bits(x.a, Isa::set1(kCoverageThreshold)));
      if (c.first < 0) {
        float lanes[kLanes];
        Isa::store(lanes, x.a);
        c.first = entry + __builtin_ctz(seen);
        c.sink = lanes[__builtin_ctz(seen)];
      }
    });
    for (int k = 0; k < kSums; ++k) Isa::store(sum(r, k), s[k]);
  }
};

/// Computes the statistics of one block of query rows.
template <class Isa>
struct BlockStats {
  const StatsBlock& block;
  Carver<Isa> carver;
  Maps<Isa> maps{block.maps, carver};
  ValueProduct<Isa> product{maps, 0, carver};
  RowStats<Isa> stats{maps, product, carver};
  float* norm[2];  // [rows]: 1 / l1, lambda / l2

  BlockStats(const StatsBlock& in, void* memory)
      : block(in), carver{static_cast<char*>(memory), 0} {
    for (float*& x : norm) x = carver.template take<float>(maps.rows);
  }

  static int64_t scratch(int block_rows, int64_t map_panels, int64_t d) {
    StatsBlock sizes{};
    sizes.maps.count = block_rows;
    sizes.maps.map_panels = map_panels;
    sizes.maps.head_dim = d;
    return BlockStats(sizes, nullptr).carver.used;
  }

  void run() {
    maps.compute_all();
    maps.set_norm(norm);
    stats.compute(norm, block.sparse_threshold);
    for (int r = 0; r < block.maps.count; ++r) stats.store(r, block.stats[r]);
  }
};

}  // namespace diffattn::cpu
