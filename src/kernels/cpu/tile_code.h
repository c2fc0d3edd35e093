// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/backward.h"
#include "kernels/cpu/block.h"
#include "kernels/cpu/decode.h"
#include "kernels/cpu/forward.h"

namespace diffattn::cpu {

/// The algorithm over one instruction set.
template <class Isa>
constexpr TileCode make_tile_code() {
  return TileCode{
      .rows = Isa::kRows,
      .columns = Isa::kCols,
      .pair = Isa::kPair,
      .depth = Isa::Pack::steps,
      .forward_scratch = Forward<Isa>::scratch,
      .backward_scratch = Backward<Isa>::scratch,
      .pack_transposed = Isa::Pack::transposed,
      .pack_rows = Isa::Pack::rows,
      .forward =
          [](const ForwardBlock* block, void* memory) {
            [[maybe_unused]] const typename Isa::Session session{};
            Forward<Isa>(*block, memory).run();
          },
      .backward =
          [](const BackwardBlock* block, void* memory) {
            [[maybe_unused]] const typename Isa::Session session{};
            Backward<Isa>(*block, memory).run();
          },
      .decode_part_floats = DecodePart<Isa>::floats,
      .decode = run_decode<Isa>,
      .decode_join =
          [](const ForwardBlock* block, int64_t chunks, float* parts) {
            DecodeJoin<Isa>{*block, parts, chunks}.run();
          },
      .store_sum = Backward<Isa>::store_sum,
  };
}

}  // namespace diffattn::cpu
