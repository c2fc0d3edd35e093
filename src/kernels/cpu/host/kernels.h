// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/kernels/params.h"
#include "kernels/cpu/block.h"

namespace diffattn::cpu {

/// The operations over the tile code of one instruction set.
void run_forward(const ForwardParams& params, const TileCode& code);
void run_backward(const BackwardParams& params, const TileCode& code);
void run_stats(const StatsParams& params, const TileCode& code);
void run_stats_backward(const StatsBackwardParams& params, const TileCode& code);
void run_map(const MapParams& params, const TileCode& code);

/// Query rows of a forward block, from the number of keys alone.
int forward_block_rows(int64_t keys, const TileCode& code);
/// The same where the maps of all keys are held at once, however many there are.
int whole_block_rows(int64_t keys, const TileCode& code);

/// Tasks that each worker should find in a wave, so that the last ones to finish wait little.
inline constexpr int64_t kTasksPerWorker = 8;
/// Packed copies of a wave beyond this leave the shared cache anyway.
inline constexpr int64_t kWaveBytes = int64_t{32} << 20;
/// Keys whose maps are held at once. 24 rows * 8 B * 16k = 3 MB per worker: L2 and a share of L3.
inline constexpr int64_t kMapKeys = 16384;

/// Heads with so few rows go through decode.h: a tile of 12 rows would cost more than they do.
inline constexpr int64_t kDecodeRows = 8;
/// Keys of one decoding task: 512 KB of k1, k2 and v in fp32 at D = 64.
inline constexpr int64_t kDecodeKeys = 512;

/// Query rows of a backward block: 12 B of maps and dA per row and key, and every block reads and
/// writes all of dk and dv once (1 KB per key at D = 64), so more rows mean less traffic. Tile
/// registers are done so soon that they wait for this: twice as many, up to kLongKeys.
inline constexpr int kBackwardRows = 48, kBackwardRowsOfTiles = 96;
/// With tile registers twice as many again where dk and dv have more columns than at D = 64, as
/// long as maps of that many rows are not much larger still.
inline constexpr int64_t kWideColumns = 256, kWideKeys = 4096;
/// Slabs of one kv head: enough for 8 threads on one head, for as many copies of dk and dv. Where
/// these copies are long, only as many as all heads need for 16 threads, but two.
inline constexpr int64_t kMaxSlabs = 8, kLongKeys = 8192, kSlabsOfLong = 16;
/// Blocks that make a slab worth adding up (2 % of 12 blocks), or, with few heads to run side by
/// side, that let more threads in.
inline constexpr int64_t kBlocksPerSlab = 12, kBlocksPerSlabOfFewHeads = 5, kFewHeads = 4;

namespace avx2 {
const TileCode& tile_code();
}
namespace avx512 {
const TileCode& tile_code();
}
namespace avx512_bf16 {
const TileCode& tile_code();
}
namespace amx {
const TileCode& tile_code();
}

}  // namespace diffattn::cpu
