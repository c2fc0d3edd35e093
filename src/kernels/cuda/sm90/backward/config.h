// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace diffattn::cuda::sm90 {

/// Rows of what the pass over rows hands to the main kernel: one "unit" is kUnitRows query rows of
/// one head, with kStatBytes of statistics and a tile of dq sums for each map.
inline constexpr int kUnitRows = 64;
inline constexpr int kStatRowBytes = 16;  // 8 bf16 a row, see RowStats in stats.cuh
inline constexpr int kStatDiffAt = kUnitRows * kStatRowBytes;    // then 64 floats
inline constexpr int kStatSignAt = kStatDiffAt + kUnitRows * 4;  // then 1 float and padding
inline constexpr int kStatBytes = kStatSignAt + 16;
inline constexpr int kDqWriters = 16;  // warps that add to a unit's dq, at most

/// Tiles of the main kernel: 128 keys, 64 for each of two warpgroups, against 64 queries a step.
/// dv, dk1 and dk2 of 64 keys take kValue / 2 + 64 registers a thread; with 64 queries scores, dp
/// and the packed p and ds just fit beside them in 255. That needs a block of 256 threads: a
/// producer warpgroup would leave 240.
template <int kValue>
struct BackwardConfig {
  static constexpr int kHeadDim = 64;
  static constexpr int kValueDim = kValue;
  static constexpr int kBlockM = kUnitRows;
  static constexpr int kBlockN = 128;
  static constexpr int kValueRows = 128;  // of a box of v
  static constexpr int kCluster = 1;      // blocks
  static constexpr int kKeyShift = 64;    // from one warpgroup's keys to the other's
  static constexpr int kStages = 2;       // of q, dO and statistics, and of ds
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kValueBlocks = kValue / 64;

  // Shared memory: byte offsets from a base at a multiple of 1024. Matrices lie in rows of 128
  // bytes with the 128-byte swizzle.
  static constexpr uint32_t kKBytes = kBlockN * 128;       // of one map
  static constexpr uint32_t kVBlockBytes = kBlockN * 128;  // 64 columns
  static constexpr uint32_t kQBytes = kBlockM * 128;       // of one map
  static constexpr uint32_t kDoBlockBytes = kBlockM * 128;
  static constexpr uint32_t kDsBytes = kBlockN * 128;    // of one map: [keys, queries]
  static constexpr uint32_t kDqWarpBytes = 16 * 64 * 4;  // 16 rows of dq
  static constexpr uint32_t kStageBytes = 2 * kQBytes + kValueBlocks * kDoBlockBytes;
  static constexpr uint32_t kPickBytes = 8 * kStatRowBytes;

  static constexpr uint32_t kKAt = 0;                                       // k1, k2
  static constexpr uint32_t kVAt = kKAt + 2 * kKBytes;                      // blocks of 64 columns
  static constexpr uint32_t kStageAt = kVAt + kValueBlocks * kVBlockBytes;  // {q1, q2, dO}
  static constexpr uint32_t kDsAt = kStageAt + kStages * kStageBytes;       // {ds1, ds2}
  static constexpr uint32_t kPickAt = kDsAt + kStages * 2 * kDsBytes;       // three operands
  static constexpr uint32_t kStatAt = kPickAt + 3 * kPickBytes;
  static constexpr uint32_t kDqAt = kStatAt + kStages * kStatBytes;  // a part for each warp
  static constexpr uint32_t kBarrierAt = kDqAt + kWarps * kDqWarpBytes;
  static constexpr uint32_t kItemAt = kBarrierAt + 9 * 8;  // kItems words: which unit a stage held
  static constexpr int kItems = 4;
  static constexpr uint32_t kEdgeAt = kItemAt + kItems * 4;  // 1 word: keys that are not padding
  static constexpr int kSmemBytes = static_cast<int>(kEdgeAt + 4);
  static_assert(kSmemBytes <= 227 * 1024);

  // Barriers, 8 bytes each at kBarrierAt. Who arrives: what it announces.
  static constexpr uint32_t kKvFull = 0;   // a loader and its bytes: k, v are there
  static constexpr uint32_t kFull = 8;     // [stage] a loader and its bytes: q, dO, statistics
  static constexpr uint32_t kEmpty = 24;   // [stage] all threads: nobody reads the stage any more
  static constexpr uint32_t kDsFull = 40;  // [stage] 8 warps: ds of both maps and all keys is there
  static constexpr uint32_t kDsEmpty = 56;  // [stage] 8 warps: dq has been computed from it
};

}  // namespace diffattn::cuda::sm90
