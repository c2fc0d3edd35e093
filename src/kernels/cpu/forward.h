// SPDX-License-Identifier: Apache-2.0
//
// Forward of one block of query rows against one kv head. Tiles are R x W; block.h explains the
// terms, and step numbers are those of docs/algorithm.md:
//
//   for each stretch of keys whose maps fit into scratch memory (usually one: all keys)
//     for each key block and each map
//       (1)     s = scale q k^T + mask             one tile at a time, accumulators in registers
//       (2) (3) e = exp2(s - ref), l += row sums   e is written once, to L2
//     (4)  O += (e1 / l1 - lambda e2 / l2) v       one product
//   (5) out = epilogue(O)
//
// Heads that share map 2 run one after the other and keep e2 and l2 of the first.
//
// This takes 8 D FLOP per (query, key) pair if Dv = 2 D. Step (4) needs the final l1 and l2. With
// several stretches these are not known yet, so O1 = e1 v and O2 = e2 v are accumulated separately
// and combined at the end (12 D FLOP). An o2 output costs the same. A head that finds map 2
// computed takes 2 D FLOP less, and 6 D less with stretches, where it finds O2 too. All sums are
// fp32.
#pragma once

#include <cstdint>

#include "kernels/cpu/block.h"
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/maps.h"
#include "kernels/cpu/value_product.h"

namespace diffattn::cpu {

template <class Isa>
struct Forward {
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;

  const ForwardBlock& block;
  Carver<Isa> carver;
  Maps<Isa> maps{block.maps, carver};
  ValueProduct<Isa> product{maps, block.value_dim, carver};

  // Scratch.
  float* acc[2];      // [rows][Dv]: O and O2; with stretches O1 and O2 before division by l1, l2
  float* norm[2];     // [rows]: factors of e1 and e2
  float* acc_ref[2];  // [rows]: the ref that acc is relative to

  Forward(const ForwardBlock& in, void* memory) : block(in), carver{static_cast<char*>(memory), 0} {
    for (int m = 0; m < 2; ++m) {
      acc[m] = carver.template take<float>(product.acc_floats());
      norm[m] = carver.template take<float>(maps.rows);
      acc_ref[m] = carver.template take<float>(maps.rows);
    }
  }

  /// Returns the bytes of scratch memory: without memory, the constructor only counts.
  static int64_t scratch(int block_rows, int64_t map_panels, int64_t d, int64_t dv) {
    ForwardBlock sizes{};
    sizes.maps.count = block_rows;
    sizes.maps.map_panels = map_panels;
    sizes.maps.head_dim = d;
    sizes.value_dim = dv;
    return Forward(sizes, nullptr).carver.used;
  }

  void run() {
    for (int h = 0; h < block.maps.heads; ++h) run_head(h);
  }

 private:
  void run_head(int h) {
    maps.begin(h);
    const bool both = block.stretches || block.rows[0].o2 != nullptr;
    for (int m = 0; m < (both ? maps.fresh : 1); ++m) {
      for (int64_t i = 0; i < product.acc_floats(); i += kLanes) {
        Isa::store(acc[m] + i, Isa::zero());
      }
    }
    int64_t first, end;
    maps.range(first, end);
    if (block.stretches) {
      run_stretches(first, end);
      for (int i = 0; i < block.maps.count; ++i) join(i);
    } else {
      run_at_once(first, end);
    }
    for (int i = 0; i < block.maps.count; ++i) finish_row(i);
  }

  void run_at_once(int64_t first, int64_t end) {
    maps.compute(first, end);  // (1) (2) (3)
    for (int i = 0; i < maps.rows; ++i) {
      norm[0][i] = maps.softmax[0].inverse(i);
      norm[1][i] = maps.softmax[1].inverse(i) * maps.row(i).lambda;
    }
    product.template add<Weights::kDifference>(norm, acc[0]);  // (4)
    if (block.rows[0].o2 == nullptr || maps.fresh == 1) return;
    for (int i = 0; i < maps.rows; ++i) norm[1][i] = maps.softmax[1].inverse(i);
    product.template add<Weights::kMap2>(norm, acc[1]);
  }

  void run_stretches(int64_t first, int64_t end) {
    for (int m = 0; m < maps.fresh; ++m) {
      for (int i = 0; i < maps.rows; ++i) {
        norm[m][i] = 1.0f;
        acc_ref[m][i] = maps.softmax[m].ref[i];
      }
    }
    for (int64_t at = first; at < end; at += block.maps.map_panels) {
      const int64_t next = at + block.maps.map_panels;
      maps.compute(at, next < end ? next : end);
      for (int m = 0; m < maps.fresh; ++m) rescale(m);
      product.template add<Weights::kMap1>(norm, acc[0]);
      if (maps.fresh == 2) product.template add<Weights::kMap2>(norm, acc[1]);
    }
  }

  /// Rescales acc of earlier stretches by exp2(old ref - new ref).
  void rescale(int m) {
    for (int i = 0; i < maps.rows; ++i) {
      const float then = acc_ref[m][i], now = maps.softmax[m].ref[i];
      if (then == now) continue;
      acc_ref[m][i] = now;
      const Vec factor = Isa::set1(__builtin_exp2f(then - now));
      float* o = acc[m] + i * product.acc_stride;
      for (int64_t c = 0; c < block.value_dim; c += kLanes) {
        const Vec x = Isa::load(o + c);
        Isa::store(o + c, Isa::where_seen(x, Isa::mul(x, factor)));  // keeps 0 if factor = inf
      }
    }
  }

  /// Computes O = O1 / l1 - lambda O2 / l2. The first head divides O2 by l2.
  void join(int i) {
    float *o = acc[0] + i * product.acc_stride, *o2 = acc[1] + i * product.acc_stride;
    const Vec a1 = Isa::set1(maps.softmax[0].inverse(i));
    const Vec a2 = Isa::set1(maps.fresh == 2 ? maps.softmax[1].inverse(i) : 1.0f);
    const Vec lambda = Isa::set1(maps.row(i).lambda);
    for (int64_t c = 0; c < block.value_dim; c += kLanes) {
      const Vec x2 = Isa::mul(Isa::load(o2 + c), a2);
      Isa::store(o2 + c, x2);
      Isa::store(o + c, Isa::sub(Isa::mul(Isa::load(o + c), a1), Isa::mul(x2, lambda)));
    }
  }

  /// Step (5): stores out, and lse, o and o2 if wanted.
  void finish_row(int i) {
    float lse[2] = {};
    for (int m = 0; m < 2; ++m) {
      if (block.rows[i].lse[m] != nullptr) lse[m] = maps.softmax[m].lse(i);
    }
    store_row<Isa>(block, maps.index(i), maps.softmax[0].seen(i), lse,
                   acc[0] + i * product.acc_stride, acc[1] + i * product.acc_stride);
  }
};

}  // namespace diffattn::cpu
