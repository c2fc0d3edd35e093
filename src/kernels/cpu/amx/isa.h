// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/amx/amx_tile.h"
#include "kernels/cpu/amx/decode_tile.h"
#include "kernels/cpu/avx512_bf16/convert.h"
#include "kernels/cpu/avx512_bf16/pair_pack.h"
#include "kernels/cpu/gradient_operands.h"

/// AMX-BF16: products run on tile registers of 16 rows x 64 B, everything else on AVX-512.
namespace diffattn::cpu::amx {

/// PairPack that pads the summed dimension to whole tiles (16 pairs) and keeps query rows as rows.
template <class Isa>
struct TilePack : PairPack<Isa, 16> {
  using Base = PairPack<Isa, 16>;

  /// Packs the rows of a strip: out [R][steps].
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

/// PairGradients as right operands: dk^T = q^T ds and dv^T = dO^T A. As left operands, A^T and ds^T
/// would need a transpose for each tile; q^T and dO^T need one per block of rows.
template <class Isa>
struct TileGradients : PairGradients<Isa> {
  static constexpr bool kTurned = true;

  template <class Tile>
  void multiply_keys(Tile& t, int m, int64_t key, int r, int count, const uint32_t* left,
                     int64_t stride) const {
    t.multiply(left, stride, this->by_key[m] + r / 2 * kMapStride + key, kMapStride, count / 2);
  }
};

struct Isa : PairOperands<Isa> {
  using Tile = AmxTile<Isa>;
  using Pack = TilePack<Isa>;
  using Gradients = TileGradients<Isa>;
  using DecodeTile = amx::DecodeTile<Isa>;
  using DecodeSession = DecodeTile::Session;
  static constexpr int kRows = 32;        // 2 x 2 registers of sums: each operand is used twice
  static constexpr bool kOverlap = true;  // tile products run in parallel with vector code

  /// Configures the tile registers for its lifetime.
  struct Session {
    Session() { _tile_loadconfig(&kTileConfig<Isa>); }
    ~Session() { _tile_release(); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };
};

}  // namespace diffattn::cpu::amx
