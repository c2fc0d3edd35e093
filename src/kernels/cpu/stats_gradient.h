// SPDX-License-Identifier: Apache-2.0
//
// The `Source` of Backward for the gradient of row statistics, in fp32. Counts and shares have no
// gradient. With S = sum |A| and the entropy H:
//
//   dA  = sign(A) (dabs + dentropy (log S - H - log |A|) / S) + 2 A dsquare - [A < 0] dnegative
//         + dsink at the first column the row sees + dmax at the first of equal maxima
//   dp1 = dA,  dp2 = -lambda dA,  dlambda = -sum p2 dA
//   (8) ds1 = p1 (dp1 - delta1),  ds2 = p2 (dp2 - delta2),  delta = sum_n p dp
//
// min(p1, lambda p2) and min(p1, p2) also pass their gradient to the smaller argument, or to p1 if
// both are equal. All of this is recomputed from e1 and e2; no other [rows][keys] matrix is stored.
#pragma once

#include <cstdint>

#include "kernels/cpu/backward_rows.h"
#include "kernels/cpu/block.h"
#include "kernels/cpu/maps.h"
#include "kernels/cpu/row_stats.h"
#include "kernels/cpu/value_product.h"

namespace diffattn::cpu {

template <class Isa>
struct StatsGradient {
  using Vec = typename Isa::Vec;
  static constexpr bool kHasValues = false;
  static constexpr int kLanes = Isa::kLanes;
  using Entries = typename RowStats<Isa>::Entries;
  struct Values {
    Vec a, ds1, ds2;
  };
  /// Coefficients that all entries of a row share.
  struct Terms {
    float sign, log_slope;  // factors of sign(A) and of sign(A) log |A|
    float square, negative, cancelled, overlap, lambda;
    float sink, maximum;
    int64_t first, top;  // offsets of the entries that sink and maximum belong to, or -1
    float delta[2];
  };

  const BackwardBlock& block;
  const Maps<Isa>& maps;
  ValueProduct<Isa>& product;
  const BackwardRows<Isa>& rows;

  // Scratch.
  RowStats<Isa> stats;
  Terms* terms;  // [rows]

  StatsGradient(const BackwardBlock& in, const Maps<Isa>& of, ValueProduct<Isa>& with,
                const BackwardRows<Isa>& beside, Carver<Isa>& carver)
      : block(in), maps(of), product(with), rows(beside), stats(of, with, carver) {
    terms = carver.template take<Terms>(maps.rows);
  }

  void compute() {
    stats.compute(rows.norm, 0.0f);
    for (int r = 0; r < maps.rows; ++r) {
      terms[r] = Terms{};
      terms[r].first = terms[r].top = -1;
      if (r < block.maps.count && stats.counts[r].seen > 0) set_terms(r);
    }
    stats.for_each_key_block([&](int64_t first, int64_t last) {
      product.set_weights(rows.norm, first);
      begin_key_block(first);
      for (int r = 0; r < block.maps.count; ++r) add_deltas(r, first, last);
    });
  }

  void begin_key_block(int64_t first) { stats.begin_key_block(first); }

  /// Returns ds1 and ds2 of one vector of row r, at offset `entry` of the maps.
  template <Turn>
  Values at(int r, int64_t entry) const {
    return of_entry(r, entry);
  }
  Values of_entry(int r, int64_t entry) const {
    const Entries x = stats.at(r, entry);
    const Gradients g = gradients(r, entry, x);
    return {Isa::zero(), Isa::mul(x.p1, Isa::sub(g.dp1, Isa::set1(terms[r].delta[0]))),
            Isa::mul(x.p2, Isa::sub(g.dp2, Isa::set1(terms[r].delta[1])))};
  }

 private:
  struct Gradients {
    Vec dp1, dp2, dlambda;
  };

  void set_terms(int r) {
    const float* d = block.rows[r].dstats;
    Terms& t = terms[r];
    const float s = stats.total(r, RowStats<Isa>::kAbs);
    const float slope = s > 0.0f ? d[kStatEntropy] / s : 0.0f;
    const float log_s = s > 0.0f ? static_cast<float>(__builtin_log(static_cast<double>(s))) : 0.0f;
    t.sign = d[kStatAbsSum] + slope * (log_s - stats.entropy(r));
    t.log_slope = -slope;
    t.square = 2.0f * d[kStatSquareSum];
    t.negative = d[kStatNegativeMass];
    t.cancelled = d[kStatCancelled];
    t.overlap = d[kStatOverlap];
    t.lambda = maps.row(r).lambda;
    t.sink = d[kStatSinkMass];
    t.maximum = d[kStatMax];
    t.first = stats.counts[r].first;
  }

  /// Returns dA without the terms of sink and maximum, which belong to single entries. sign(0) = 0.
  Vec smooth_part(const Terms& t, Vec a) const {
    const Vec zero = Isa::zero(), negated = Isa::sub(zero, a);
    Vec magnitude_slope = Isa::set1(t.sign);
    if (t.log_slope != 0.0f) {
      const Vec log = natural_log<Isa>(Isa::max(a, negated));
      magnitude_slope = Isa::fma(Isa::set1(t.log_slope), log, magnitude_slope);
    }
    Vec da = Isa::select(Isa::greater_bits(a, zero), magnitude_slope, zero);
    const Vec below = Isa::sub(Isa::sub(zero, magnitude_slope), Isa::set1(t.negative));
    da = Isa::select(Isa::greater_bits(zero, a), below, da);
    return Isa::fma(a, Isa::set1(t.square), da);
  }

  Gradients gradients(int r, int64_t entry, const Entries& x) const {
    const Terms& t = terms[r];
    const Vec zero = Isa::zero(), lambda = Isa::set1(t.lambda);
    Vec da = smooth_part(t, x.a);
    da = add_single(da, t.first - entry, t.sink);
    da = add_single(da, t.top - entry, t.maximum);
    const Vec minus_da = Isa::sub(zero, da);
    Gradients g{da, Isa::mul(lambda, minus_da), Isa::mul(x.p2, minus_da)};
    const uint32_t p1_larger = Isa::greater_bits(x.p1, Isa::max(x.scaled_p2, zero));
    const Vec cancelled = Isa::set1(t.cancelled);
    g.dp1 = Isa::add(g.dp1, Isa::select(~p1_larger, cancelled, zero));
    if (t.lambda > 0.0f) {
      const Vec to_p2 = Isa::select(p1_larger, cancelled, zero);
      g.dp2 = Isa::fma(to_p2, lambda, g.dp2);
      g.dlambda = Isa::fma(to_p2, x.p2, g.dlambda);
    }
    const uint32_t p2_smaller = Isa::greater_bits(x.p1, x.p2);
    const Vec overlap = Isa::set1(t.overlap);
    g.dp1 = Isa::add(g.dp1, Isa::select(~p2_smaller, overlap, zero));
    g.dp2 = Isa::add(g.dp2, Isa::select(p2_smaller, overlap, zero));
    return g;
  }

  static Vec add_single(Vec x, int64_t lane, float value) {
    if (lane < 0 || lane >= kLanes) return x;
    return Isa::add(x, Isa::select(1u << lane, Isa::set1(value), Isa::zero()));
  }

  /// Adds one key block to delta and dlambda of row r, and finds the first entry that equals the
  /// maximum.
  void add_deltas(int r, int64_t first, int64_t last) {
    Terms& t = terms[r];
    if (t.first < 0) return;
    const float maximum = stats.maximum(r);
    Vec delta1 = Isa::zero(), delta2 = Isa::zero(), dlambda = Isa::zero();
    stats.for_each_seen(r, first, last, [&](int64_t entry, uint32_t seen) {
      const Entries x = stats.at(r, entry);
      if (t.top < 0) {
        const uint32_t equal = ~Isa::not_equal_bits(x.a, maximum) & seen;
        if (equal != 0) t.top = entry + __builtin_ctz(equal);
      }
      const Gradients g = gradients(r, entry, x);
      if (stats.counts[r].seen == 1) {  // p = 1: delta is dp itself, and dp - delta exactly 0
        delta1 = Isa::select(seen, g.dp1, Isa::zero());
        delta2 = Isa::select(seen, g.dp2, Isa::zero());
      } else {
        delta1 = Isa::fma(x.p1, g.dp1, delta1);
        delta2 = Isa::fma(x.p2, g.dp2, delta2);
      }
      dlambda = Isa::add(dlambda, Isa::select(seen, g.dlambda, Isa::zero()));
    });
    t.delta[0] += Isa::sum(delta1);
    t.delta[1] += Isa::sum(delta2);
    if (block.rows[r].dlambda != nullptr) *block.rows[r].dlambda += Isa::sum(dlambda);
  }
};

}  // namespace diffattn::cpu
