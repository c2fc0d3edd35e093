// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/amx/amx_tile.h"
#include "kernels/cpu/avx512_bf16/convert.h"
#include "kernels/cpu/avx512_bf16/pair_pack.h"
#include "kernels/cpu/gradient_operands.h"

/// AMX-BF16: products on 16 x 64 B tile registers, everything else on AVX-512.
namespace diffattn::cpu::amx {

/// PairPack with whole tiles along the summed dimension and query rows left as rows.
template <class Isa>
struct TilePack : PairPack<Isa, 16> {
  using Base = PairPack<Isa, 16>;

  /// out [R][steps]
  static void strip(const void* const* rows, Dtype, int64_t width, uint32_t* out) {
    const int64_t depth = Base::steps(width);
    for (int i = 0; i < Isa::kRows; ++i) {
      for (int64_t k = 0; k < depth; k += Isa::kLanes) {
        const __m512 x = rows[i] == nullptr
                             ? _mm512_setzero_ps()
                             : Base::load_pairs(static_cast<const uint16_t*>(rows[i]), width, k);
        _mm512_storeu_ps(reinterpret_cast<float*>(out + i * depth + k), x);
      }
    }
  }
};

/// PairGradients whose transposed copy has whole rows of keys, as a left tile must have:
/// by_key [keys][kKeyStride], pairs of query rows side by side.
template <class Isa>
struct TileGradients : PairGradients<Isa> {
  using Base = PairGradients<Isa>;
  using Vec = __m512;
  static constexpr int kKeyStride = kMaxBlockRows / 2 + 16;
  static constexpr int kPairs = Isa::kRows / 2;  // of one strip
  uint32_t* stage[kGradientMatrices];            // [pairs][W]: one tile before it is turned

  void carve(int rows, Carver<Isa>& carver) {
    Base::carve_rows(rows, carver);
    for (int m = 0; m < kGradientMatrices; ++m) {
      Base::by_key[m] = carver.template take<uint32_t>(kKeyBlock * kKeyStride);
      stage[m] = carver.template take<uint32_t>(kPairs * Isa::kCols);
    }
  }
  void store(int m, int r, int64_t col, const Vec (&x)[2][2]) {
    Base::store_rows(m, r, col, x);
    uint32_t* to = stage[m] + r / 2 % kPairs * Isa::kCols;
    Isa::store_row_pair(to, x[0][0], x[1][0]);
    Isa::store_row_pair(to + Isa::kLanes, x[0][1], x[1][1]);
  }
  void finish_tile(int m, int s, int64_t col) {
    for (int h = 0; h < Isa::kCols; h += Isa::kLanes) {
      Vec pairs[kPairs];
      for (int i = 0; i < kPairs; ++i) {
        pairs[i] = _mm512_loadu_ps(reinterpret_cast<float*>(stage[m] + i * Isa::kCols + h));
      }
      Isa::transpose(pairs);
      for (int j = 0; j < Isa::kLanes; ++j) {
        uint32_t* to = Base::by_key[m] + (col + h + j) * kKeyStride + s * kPairs;
        _mm512_storeu_ps(reinterpret_cast<float*>(to), pairs[j]);
      }
    }
  }
  template <class Tile>
  void multiply_keys(Tile& t, int m, int64_t key, int r, int count, const uint32_t* right,
                     int64_t stride) const {
    t.multiply(Base::by_key[m] + key * kKeyStride + r / 2, kKeyStride, right, stride, count / 2);
  }
};

struct Isa : PairOperands<Isa> {
  using Tile = AmxTile<Isa>;
  using Pack = TilePack<Isa>;
  using Gradients = TileGradients<Isa>;
  static constexpr int kRows = 32;        // 2 x 2 tiles of sums: each operand tile is used twice
  static constexpr bool kOverlap = true;  // tiles are multiplied beside the vector ports

  /// Tile registers are in use while it lives.
  struct Session {
    Session() { _tile_loadconfig(&kTileConfig<Isa>); }
    ~Session() { _tile_release(); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };
};

}  // namespace diffattn::cpu::amx
