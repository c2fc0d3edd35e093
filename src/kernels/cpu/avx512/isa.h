// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/avx512/vec.h"
#include "kernels/cpu/fma_tile.h"
#include "kernels/cpu/gradient_operands.h"
#include "kernels/cpu/pack.h"

/// AVX-512 with fp32 operands: 32 registers of 16 floats.
namespace diffattn::cpu::avx512 {

struct Isa : Avx512<Isa> {
  using Operand = float;
  using Tile = FmaTile<Isa>;
  using Pack = FloatPack<Isa>;
  using Gradients = FloatGradients<Isa>;
  static constexpr int kRows = 12;  // 12 x 2 sums + 2 vectors of b + 1 broadcast: 27 registers
  static constexpr bool kOverlap = false;
  static constexpr int kPair = 1;

  struct Session {};
  using DecodeSession = Session;
  static void store_operands(Operand* p, Vec x0, Vec x1) {
    store(p, x0);
    store(p + kLanes, x1);
  }
};

}  // namespace diffattn::cpu::avx512
