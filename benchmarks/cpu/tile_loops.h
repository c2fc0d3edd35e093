// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace diffattn::bench {

/// Loops over the building blocks of one instruction set, on data in L1. Each returns the work of
/// all its iterations. `steps` is the length of the summed dimension.
struct TileLoops {
  const char* backend;
  int rows, columns;
  int64_t (*product)(int64_t loops, int64_t steps);    // one tile per iteration; returns FLOP
  int64_t (*exponentials)(int64_t loops);              // 1024 per iteration; returns their number
  int64_t (*transpose)(int64_t loops, int64_t width);  // packs one panel of k; returns bytes read
};

}  // namespace diffattn::bench

#define DIFFATTN_DECLARE_LOOPS(isa)     \
  namespace diffattn::cpu::isa {        \
  const bench::TileLoops& tile_loops(); \
  }
DIFFATTN_DECLARE_LOOPS(amx)
DIFFATTN_DECLARE_LOOPS(avx512_bf16)
DIFFATTN_DECLARE_LOOPS(avx512)
DIFFATTN_DECLARE_LOOPS(avx2)
#undef DIFFATTN_DECLARE_LOOPS
