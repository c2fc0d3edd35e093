// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/backward.h"
#include "kernels/cpu/block.h"
#include "kernels/cpu/decode.h"
#include "kernels/cpu/forward.h"
#include "kernels/cpu/map_cells.h"
#include "kernels/cpu/output_gradient.h"
#include "kernels/cpu/row_stats.h"
#include "kernels/cpu/stats_gradient.h"

namespace diffattn::cpu {

/// Runs `Work` on one block in the given scratch memory. Session configures AMX tile registers.
template <class Isa, class Work, class Block>
void run_block(const Block* block, void* memory) {
  [[maybe_unused]] const typename Isa::Session session{};
  Work(*block, memory).run();
}

/// Returns all kernels, instantiated for one instruction set.
template <class Isa>
constexpr TileCode make_tile_code() {
  using OfOutput = Backward<Isa, OutputGradient>;
  using OfStats = Backward<Isa, StatsGradient>;
  return TileCode{
      .rows = Isa::kRows,
      .columns = Isa::kCols,
      .pair = Isa::kPair,
      .depth = Isa::Pack::steps,
      .forward_scratch = Forward<Isa>::scratch,
      .backward_scratch = OfOutput::scratch,
      .pack_transposed = Isa::Pack::transposed,
      .pack_rows = Isa::Pack::rows,
      .forward = run_block<Isa, Forward<Isa>, ForwardBlock>,
      .backward = run_block<Isa, OfOutput, BackwardBlock>,
      .stats_scratch = BlockStats<Isa>::scratch,
      .stats_backward_scratch = OfStats::scratch,
      .map_scratch = MapCells<Isa>::scratch,
      .stats = run_block<Isa, BlockStats<Isa>, StatsBlock>,
      .stats_backward = run_block<Isa, OfStats, BackwardBlock>,
      .map = run_block<Isa, MapCells<Isa>, MapBlock>,
      .decode_part_floats = DecodePart<Isa>::floats,
      .decode = run_decode<Isa>,
      .decode_join =
          [](const ForwardBlock* block, int64_t chunks, float* parts) {
            DecodeJoin<Isa>{*block, parts, chunks}.run();
          },
      .store_sums = store_sums<Isa>,
  };
}

}  // namespace diffattn::cpu
