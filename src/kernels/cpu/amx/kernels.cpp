// SPDX-License-Identifier: Apache-2.0
//
// Instantiates the tile code for AMX. cmake/isa_flags.cmake sets the compiler flags.

#include "kernels/cpu/amx/isa.h"
#include "kernels/cpu/tile_code.h"

namespace diffattn::cpu::amx {

const TileCode& tile_code() {
  static constexpr TileCode kCode = make_tile_code<Isa>();
  return kCode;
}

}  // namespace diffattn::cpu::amx
