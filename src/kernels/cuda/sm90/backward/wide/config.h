// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/sm90/backward/config.h"

namespace diffattn::cuda::sm90 {

/// Tiles of the main kernel for D = 128, Dv = 128 or 256: 64 keys against 64 queries a step, one
/// warpgroup for each map. It keeps dk of its map and half of the columns of dv, 64 + kValue / 4
/// registers a thread. At Dv = 256 two stages of q and dO take 128 KB of shared memory beside 64 KB
/// of k and v, which leaves none to stage dq in: it leaves from registers.
template <int kValue>
struct WideBackwardConfig {
  static constexpr int kHeadDim = 128;
  static constexpr int kValueDim = kValue;
  static constexpr int kBlockM = kUnitRows;
  static constexpr int kBlockN = 64;
  static constexpr int kKeyShift = 0;  // both warpgroups have the same keys
  static constexpr int kStages = 2;
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kValueBlocks = kValue / 64;
  static constexpr int kItems = 0;
  static constexpr uint32_t kItemAt = 0;

  // Shared memory: byte offsets, blocks of 64 columns in rows of 128 bytes.
  static constexpr uint32_t kBlockBytes = 64 * 128;
  static constexpr uint32_t kKBytes = 2 * kBlockBytes;  // of one map
  static constexpr uint32_t kVBlockBytes = kBlockBytes;
  static constexpr uint32_t kQBytes = 2 * kBlockBytes;  // of one map
  static constexpr uint32_t kStageBytes = 2 * kQBytes + kValueBlocks * kBlockBytes;
  static constexpr uint32_t kPickBytes = 8 * kStatRowBytes;

  static constexpr uint32_t kKAt = 0;
  static constexpr uint32_t kVAt = kKAt + 2 * kKBytes;
  static constexpr uint32_t kStageAt = kVAt + kValueBlocks * kBlockBytes;
  static constexpr uint32_t kDsAt = kStageAt + kStages * kStageBytes;  // [map]: p, then ds
  static constexpr uint32_t kGradAt = kDsAt + 2 * kBlockBytes;         // [map]: dp - delta, half
  static constexpr uint32_t kPickAt = kGradAt + 2 * (kBlockBytes / 2);
  static constexpr uint32_t kStatAt = kPickAt + 3 * kPickBytes;
  static constexpr uint32_t kBarrierAt = kStatAt + kStages * kStatBytes;
  static constexpr uint32_t kEdgeAt = kBarrierAt + 5 * 8;
  static constexpr uint32_t kNextAt = kEdgeAt + 4;  // 2 words: units the tile of the next keys has
  static constexpr int kSmemBytes = static_cast<int>(kNextAt + 8);
  static_assert(kSmemBytes <= 227 * 1024);

  // Barriers in shared memory, as in BackwardConfig.
  static constexpr uint32_t kKvFull = 0;
  static constexpr uint32_t kFull = 8;    // [stage]
  static constexpr uint32_t kEmpty = 24;  // [stage]
};

}  // namespace diffattn::cuda::sm90
