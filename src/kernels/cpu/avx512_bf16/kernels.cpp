// SPDX-License-Identifier: Apache-2.0
//
// Instantiates the tile code for AVX512-BF16. cmake/isa_flags.cmake sets the compiler flags.

#include "kernels/cpu/avx512_bf16/isa.h"
#include "kernels/cpu/tile_code.h"

namespace diffattn::cpu::avx512_bf16 {

const TileCode& tile_code() {
  static constexpr TileCode kCode = make_tile_code<Isa>();
  return kCode;
}

}  // namespace diffattn::cpu::avx512_bf16
