// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/sm90/forward/config.h"

namespace diffattn::cuda::sm90 {

/// Tile shapes and the shared-memory plan for D = 128, Dv = 256. A thread cannot hold O of both
/// maps, so a cluster of two blocks takes a work item of 128 query rows, one map per block. Tile
/// layouts, offsets and mbarriers are as in `ForwardConfig`.
struct WideConfig {
  static constexpr int kHeadDim = 128, kValueDim = 256;
  static constexpr int kHalf = kValueDim / 2;  // columns of O that a block finishes
  // O takes 128 of 232 registers, S 40 and P 20. Tiles of 96 keys leave shared memory for one
  // buffer of q only and reached 643 instead of 728 TFLOP/s (4k causal, H200).
  static constexpr int kBlockN = 80;
  static constexpr int kStages = 2;
  static constexpr int kCluster = 2;
  static constexpr int kQBuffers = 2;
  static constexpr int kItemSlots = 2;  // wide/kernel.cuh and the plan below rely on 2
  static constexpr int kThreads = 3 * kWarpgroup;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

  static constexpr int kKBytes = kBlockN * kHeadDim * 2;
  static constexpr int kVBytes = kBlockN * kValueDim * 2;
  static constexpr int kQBytes = kConsumerRows * kHeadDim * 2;  // for one consumer
  static constexpr int kPartWarp = 16 * kHalf * 2;              // output buffer: a warp's 16 rows

  static constexpr int kK = 0;                                   // [stage][kBlockN, D]
  static constexpr int kV = kK + kStages * kKBytes;              // [stage][kBlockN, Dv]
  static constexpr int kQ = kV + kStages * kVBytes;              // [buffer][consumer][64, D]
  static constexpr int kX = kQ + kQBuffers * 2 * kQBytes;        // [consumer][warp][16, kHalf]
  static constexpr int kGains = kX + 8 * kPartWarp;              // float [Dv]
  static constexpr int kSquares = kGains + 4 * kValueDim;        // float [warp][16]
  static constexpr int kItems = kSquares + 8 * 16 * 4;           // [2] Item
  static constexpr int kKFull = kItems + 2 * kItemBytes;         // [stage]
  static constexpr int kKEmpty = kKFull + 8 * kStages;           // [stage], 8 warps
  static constexpr int kVFull = kKEmpty + 8 * kStages;           // [stage], halves of both blocks
  static constexpr int kVEmpty = kVFull + 8 * kStages;           // [stage], 16 warps of both blocks
  static constexpr int kQFull = kVEmpty + 8 * kStages;           // [buffer][consumer]
  static constexpr int kQEmpty = kQFull + 8 * 2 * kQBuffers;     // [buffer][consumer], 4 warps
  static constexpr int kItemFull = kQEmpty + 8 * 2 * kQBuffers;  // [2]
  static constexpr int kItemEmpty = kItemFull + 16;  // [2], 16 warps of both blocks, in block 0
  static constexpr int kXReady = kItemEmpty + 16;    // [consumer], 4 warps of the other block
  static constexpr int kXFull = kXReady + 16;        // [warp], columns of the other block
  static constexpr int kSquaresFull = kXFull + 64;   // [warp], row sums of the other block
  static constexpr int kTake = kSquaresFull + 64;    // loader of block 0, kTakeTiles before end
  static constexpr int kSmemBytes = kTake + 8;
  static_assert(kSmemBytes <= kMaxSmem);
};

}  // namespace diffattn::cuda::sm90
