// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace diffattn::cuda::sm90 {

/// A "unit" is kUnitRows query rows of one head. For each unit the pass over rows (rows.cuh) writes
/// kStatBytes of statistics, laid out as in stats.cuh, and clears the sums of dq1 and dq2.
inline constexpr int kUnitRows = 64;
inline constexpr int kStatRowBytes = 16;                         // 8 bf16 per row
inline constexpr int kStatDiffAt = kUnitRows * kStatRowBytes;    // offset of 64 floats
inline constexpr int kStatSignAt = kStatDiffAt + kUnitRows * 4;  // offset of 1 float and padding
inline constexpr int kStatBytes = kStatSignAt + 16;
inline constexpr int kDqWriters = 16;  // warps of a key tile that add to a unit's dq, at most

/// Tile shapes and the shared-memory plan of kernel.cuh: 128 keys, 64 for each of two warpgroups,
/// and 64 queries per step. dv, dk1 and dk2 of 64 keys take kValue / 2 + 64 registers per thread.
/// The scores, dp and the packed p and ds of 64 queries just fit beside them into 255 registers. A
/// third warpgroup as producer would leave only 240.
template <int kValue>
struct BackwardConfig {
  static constexpr int kHeadDim = 64;
  static constexpr int kValueDim = kValue;
  static constexpr int kBlockM = kUnitRows;
  static constexpr int kBlockN = 128;
  static constexpr int kValueRows = 128;  // rows of a TMA box of v
  static constexpr int kCluster = 1;      // blocks
  static constexpr int kKeyShift = 64;    // first key of warpgroup 1 in the tile
  static constexpr int kStages = 2;       // of q, dO and statistics, and of ds
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kValueBlocks = kValue / 64;

  // Shared memory: byte offsets from a 1024-byte aligned base. Matrices have rows of 128 bytes with
  // the 128-byte swizzle.
  static constexpr uint32_t kKBytes = kBlockN * 128;        // one of k1, k2
  static constexpr uint32_t kVBlockBytes = kBlockN * 128;   // 64 columns of v
  static constexpr uint32_t kQBytes = kBlockM * 128;        // one of q1, q2
  static constexpr uint32_t kDoBlockBytes = kBlockM * 128;  // 64 columns of dO
  static constexpr uint32_t kDsBytes = kBlockN * 128;       // one of ds1, ds2, [keys, queries]
  static constexpr uint32_t kDqWarpBytes = 16 * 64 * 4;     // 16 rows of dq, float
  static constexpr uint32_t kStageBytes = 2 * kQBytes + kValueBlocks * kDoBlockBytes;
  static constexpr uint32_t kPickBytes = 8 * kStatRowBytes;  // see BackwardProducts::Pick

  static constexpr uint32_t kKAt = 0;                                       // k1, k2
  static constexpr uint32_t kVAt = kKAt + 2 * kKBytes;                      // [block of 64 columns]
  static constexpr uint32_t kStageAt = kVAt + kValueBlocks * kVBlockBytes;  // [stage] {q1, q2, dO}
  static constexpr uint32_t kDsAt = kStageAt + kStages * kStageBytes;       // [stage] {ds1, ds2}
  static constexpr uint32_t kPickAt = kDsAt + kStages * 2 * kDsBytes;       // [3]
  static constexpr uint32_t kStatAt = kPickAt + 3 * kPickBytes;             // [stage]
  static constexpr uint32_t kDqAt = kStatAt + kStages * kStatBytes;         // [warp]
  static constexpr uint32_t kBarrierAt = kDqAt + kWarps * kDqWarpBytes;
  static constexpr uint32_t kItemAt = kBarrierAt + 9 * 8;        // [kItems] head << 20 | unit
  static constexpr int kItems = 4;                               // latest items; dq lags behind
  static constexpr uint32_t kKeyRangeAt = kItemAt + kItems * 4;  // 1 word: range of unpadded keys
  static constexpr int kSmemBytes = static_cast<int>(kKeyRangeAt + 4);
  static_assert(kSmemBytes <= 227 * 1024);

  // mbarriers, 8 bytes each at kBarrierAt. The comments say who arrives and what it announces.
  static constexpr uint32_t kKvFull = 0;    // TMA: k and v are loaded
  static constexpr uint32_t kFull = 8;      // [stage] TMA: q, dO and statistics are loaded
  static constexpr uint32_t kEmpty = 24;    // [stage] all threads: done with q, dO, statistics
  static constexpr uint32_t kDsFull = 40;   // [stage] 8 warps: ds of both maps is stored
  static constexpr uint32_t kDsEmpty = 56;  // [stage] 8 warps: dq is computed from ds
};

}  // namespace diffattn::cuda::sm90
