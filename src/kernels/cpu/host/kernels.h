// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/kernels/params.h"
#include "kernels/cpu/block.h"

namespace diffattn::cpu {

/// Each function runs one operation over all heads, with the tile code of one instruction set.
void run_forward(const ForwardParams& params, const TileCode& code);
void run_backward(const BackwardParams& params, const TileCode& code);
void run_stats(const StatsParams& params, const TileCode& code);
void run_stats_backward(const StatsBackwardParams& params, const TileCode& code);
void run_map(const MapParams& params, const TileCode& code);

/// Returns the query rows of a forward block, which depend on the number of keys alone.
int forward_block_rows(int64_t keys, const TileCode& code);
/// Returns the query rows of a block that holds the maps of all keys at once.
int whole_block_rows(int64_t keys, const TileCode& code);

/// Tasks per worker in a wave: enough for all workers to finish at about the same time.
inline constexpr int64_t kTasksPerWorker = 8;
/// Limit on the packed copies of a wave: more would not stay in the shared cache.
inline constexpr int64_t kWaveBytes = int64_t{32} << 20;
/// Most keys whose maps a forward block holds at once: 24 rows * 8 B * 16384 = 3 MB per worker,
/// which fits into L2 and a share of L3.
inline constexpr int64_t kMapKeys = 16384;

/// A kv head with at most this many query rows is decoded (decode.h): tiles of 12 rows and packed
/// keys would cost more than they save.
inline constexpr int64_t kDecodeRows = 8;
/// Keys of one decoding task: 512 KB of k1, k2 and v in fp32 at D = 64.
inline constexpr int64_t kDecodeKeys = 512;
/// Pages are decoded in place if their size is a multiple of this, the most keys that decode.h
/// processes at once.
inline constexpr int64_t kPagedKeys = 64;

/// Query rows of a backward block. A row needs 12 B of maps and dA per key. Every block reads and
/// writes all of dk and dv once (1 KB per key at D = 64), so more rows mean less traffic. AMX is
/// limited by this traffic and takes twice as many rows, up to kLongKeys keys.
inline constexpr int kBackwardRows = 48, kBackwardRowsOfTiles = 96;
/// AMX doubles the rows again if dk1, dk2 and dv have more than kWideColumns columns together (as
/// many as at D = 64, Dv = 128). With more than kWideKeys keys the maps would be too large for it.
inline constexpr int64_t kWideColumns = 256, kWideKeys = 4096;
/// Most slabs of one kv head. 8 slabs let 8 threads work on one head, but are 8 copies of dk and
/// dv. Beyond kLongKeys keys all kv heads share kSlabsOfLong slabs, with at least two per head.
inline constexpr int64_t kMaxSlabs = 8, kLongKeys = 8192, kSlabsOfLong = 16;
/// Blocks per slab. Adding up a slab costs 2 % of 12 blocks. With fewer than kFewHeads kv heads,
/// smaller slabs let more threads work.
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
