// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/avx512_bf16/convert.h"
#include "kernels/cpu/avx512_bf16/dot_tile.h"
#include "kernels/cpu/avx512_bf16/pair_pack.h"
#include "kernels/cpu/gradient_operands.h"

/// AVX512-BF16: vdpbf16ps adds the dot product of two bf16 pairs to each fp32 lane. It has twice
/// the FLOP rate of FMA on Zen 4 and half of it on Sapphire Rapids, which has AMX instead.
namespace diffattn::cpu::avx512_bf16 {

struct Isa : PairOperands<Isa> {
  using Tile = DotTile<Isa>;
  using Pack = PairPack<Isa, 1>;
  using Gradients = PairGradients<Isa>;
  static constexpr int kRows = 12;  // same registers as avx512: 27 of 32
  static constexpr bool kOverlap = false;

  struct Session {};
  using DecodeSession = Session;
};

}  // namespace diffattn::cpu::avx512_bf16
