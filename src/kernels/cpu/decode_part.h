// SPDX-License-Identifier: Apache-2.0
//
// Partial results of decoding, and their combination. For each row, map m and chunk c of keys, all
// in fp32:
//
//   part:  ref_c,   l_c = sum exp2(s - ref_c),   O_c = sum exp2(s - ref_c) v     [Dv]
//   join:  ref = max ref_c,   l_m = sum l_c exp2(ref_c - ref),   O_m = sum O_c exp2(ref_c - ref)
//          (4) O = O_1 / l_1 - lambda O_2 / l_2        (5) out = epilogue(O)
//
// Chunks are added in order, so results do not depend on the threads.
#pragma once

#include <cstdint>

#include "kernels/cpu/block.h"
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/tile_size.h"

namespace diffattn::cpu {

/// The part of one row, map and chunk: ref, l with one sum per vector lane, and O [Dv], padded to
/// whole vectors.
template <class Isa>
struct DecodePart {
  static int64_t width(int64_t value_dim) {
    return (value_dim + Isa::kLanes - 1) / Isa::kLanes * Isa::kLanes;
  }
  /// Floats from one map or row to the next.
  static int64_t stride(int64_t value_dim) { return kHeader + width(value_dim); }
  /// Rows with padding: a group of three runs as four.
  static int padded(int rows) { return rows % 4 == 3 ? rows + 1 : rows; }
  /// Floats of all rows and both maps.
  static int64_t floats(int rows, int64_t value_dim) {
    return 2 * padded(rows) * stride(value_dim);
  }
  static constexpr int kHeader = 32;  // floats before O: ref, then l

  float* data;
  DecodePart(float* parts, int64_t value_dim, int row, int m)
      : data(parts + (2 * row + m) * stride(value_dim)) {}
  float& ref() const { return data[0]; }
  float* l() const { return data + kHeader / 2; }
  float* o() const { return data + kHeader; }
};

/// Combines the parts of all chunks of one head and stores its outputs.
template <class Isa>
struct DecodeJoin {
  using Vec = typename Isa::Vec;
  static constexpr int kLanes = Isa::kLanes;

  const ForwardBlock& block;
  float* const parts;  // [chunks] of DecodePart; the first is overwritten
  const int64_t chunks;
  const int64_t stride = DecodePart<Isa>::floats(block.maps.count, block.value_dim);

  void run() {
    for (int i = 0; i < block.maps.count; ++i) run_row(i);
  }

 private:
  DecodePart<Isa> part(int64_t chunk, int i, int m) const {
    return {parts + chunk * stride, block.value_dim, i, m};
  }

  void run_row(int i) {
    float* o[2];
    float l[2], lse[2];
    for (int m = 0; m < 2; ++m) {
      const DecodePart<Isa> sum = add_chunks(i, m);
      o[m] = sum.o();
      l[m] = Isa::sum(Isa::load(sum.l()));
      lse[m] = static_cast<float>((sum.ref() + __builtin_log2(static_cast<double>(l[m]))) * kLn2);
    }
    const bool seen = l[0] != 0.0f;
    const Vec a1 = Isa::set1(seen ? 1.0f / l[0] : 0.0f), a2 = Isa::set1(seen ? 1.0f / l[1] : 0.0f);
    const Vec lambda = Isa::set1(block.maps.rows[i].lambda);
    for (int64_t c = 0; c < block.value_dim; c += kLanes) {
      const Vec x2 = Isa::mul(Isa::load(o[1] + c), a2);
      Isa::store(o[1] + c, x2);
      Isa::store(o[0] + c, Isa::sub(Isa::mul(Isa::load(o[0] + c), a1), Isa::mul(x2, lambda)));
    }
    store_row<Isa>(block, i, seen, lse, o[0], o[1]);
  }

  /// Rescales all chunks to the largest ref and adds them into the first.
  DecodePart<Isa> add_chunks(int i, int m) {
    const float nothing = -__builtin_inff();
    const DecodePart<Isa> sum = part(0, i, m);
    float ref = nothing;
    for (int64_t k = 0; k < chunks; ++k) {
      const float other = part(k, i, m).ref();
      ref = other > ref ? other : ref;
    }
    for (int64_t k = 0; k < chunks; ++k) {
      const DecodePart<Isa> from = part(k, i, m);
      // No ref: the row sees no key of this chunk (l = 0), or only NaN scores (stays NaN).
      const float factor = from.ref() == nothing ? 1.0f : __builtin_exp2f(from.ref() - ref);
      const Vec l = Isa::mul(Isa::load(from.l()), Isa::set1(factor));
      Isa::store(sum.l(), k == 0 ? l : Isa::add(Isa::load(sum.l()), l));
      for (int64_t c = 0; c < block.value_dim; c += kLanes) {
        const Vec x = Isa::mul(Isa::load(from.o() + c), Isa::set1(factor));
        Isa::store(sum.o() + c, k == 0 ? x : Isa::add(Isa::load(sum.o() + c), x));
      }
    }
    sum.ref() = ref;
    return sum;
  }
};

}  // namespace diffattn::cpu
