// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/sm90/backward/config.h"

namespace diffattn::cuda::sm90 {

/// Tiles of the main kernel for D = 128, Dv = 128 or 256: a cluster of two blocks has 128 keys,
/// block c computes map c for all of them, and dp and dv for the 64 keys from 64 c on. A thread
/// keeps dk of 64 keys and half of the columns of dv: 64 + kValue / 4 registers.
template <int kValue>
struct WideBackwardConfig {
  static constexpr int kHeadDim = 128;
  static constexpr int kValueDim = kValue;
  static constexpr int kBlockM = kUnitRows;
  static constexpr int kBlockN = 128;
  static constexpr int kKeyShift = 64;   // from one warpgroup's keys to the other's
  static constexpr int kValueRows = 64;  // of a box of v
  static constexpr int kCluster = 2;     // blocks
  static constexpr int kQStages = 3;     // of q and statistics
  static constexpr int kStages = 2;      // of dO
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kValueBlocks = kValue / 64;
  static constexpr int kItems = 0;
  static constexpr uint32_t kItemAt = 0;

  // Shared memory: byte offsets, blocks of 64 columns in rows of 128 bytes.
  static constexpr uint32_t kBlockBytes = 64 * 128;
  static constexpr uint32_t kKBlockBytes = kBlockN * 128;
  static constexpr uint32_t kKBytes = 2 * kKBlockBytes;  // of one map
  static constexpr uint32_t kVBytes = kValueBlocks * kBlockBytes;
  static constexpr uint32_t kQBytes = 2 * kBlockBytes;  // of one map
  static constexpr uint32_t kDoBytes = kValueBlocks * kBlockBytes;
  static constexpr uint32_t kPickBytes = 8 * kStatRowBytes;

  static constexpr uint32_t kKAt = 0;
  static constexpr uint32_t kVAt = kKAt + kKBytes;
  static constexpr uint32_t kQAt = kVAt + kVBytes;              // [stage]
  static constexpr uint32_t kDoAt = kQAt + kQStages * kQBytes;  // [stage]
  static constexpr uint32_t kDsAt = kDoAt + kStages * kDoBytes;
  // What threads give each other, 16 bytes a thread at a time: p of this block's map and of the
  // other's, for the keys of dv; dp - delta, from this block and from the other.
  static constexpr uint32_t kOwnPAt = kDsAt + kBlockN * 128;
  static constexpr uint32_t kOtherPAt = kOwnPAt + kBlockBytes;
  static constexpr uint32_t kOtherGradAt = kOtherPAt + kBlockBytes;
  static constexpr uint32_t kOwnGradAt = kOtherGradAt + kBlockBytes;  // half of the queries
  static constexpr uint32_t kGivenBytes = kBlockBytes;                // of p, of dp
  static constexpr uint32_t kPickAt = kOwnGradAt + kBlockBytes / 2;
  static constexpr uint32_t kStatAt = kPickAt + 3 * kPickBytes;
  static constexpr uint32_t kBarrierAt = kStatAt + kQStages * kStatBytes;
  static constexpr uint32_t kEdgeAt = kBarrierAt + 11 * 8;
  static constexpr uint32_t kNextAt = kEdgeAt + 4;  // 2 words: units the tile of the next keys has
  static constexpr uint32_t kLoadAt = kNextAt + 8;  // 2 words: the next item of q, of dO to load
  // A unit's statistics are 1 KB of an operand that has 2, half of it read twice: compute-sanitizer
  // takes the operand for contiguous, so what follows the last ones belongs to the block as well.
  static constexpr uint32_t kStatOperandEnd = kStatAt + (kQStages - 1) * kStatBytes + 2048;
  static constexpr int kSmemBytes =
      static_cast<int>(kStatOperandEnd > kLoadAt + 8 ? kStatOperandEnd : kLoadAt + 8);
  static_assert(kSmemBytes <= 227 * 1024);

  // Barriers, 8 bytes each at kBarrierAt. Who arrives: what it announces.
  static constexpr uint32_t kKvFull = 0;    // a loader and its bytes: k, v are there
  static constexpr uint32_t kQFull = 8;     // [stage] a loader and its bytes
  static constexpr uint32_t kDoFull = 32;   // [stage]
  static constexpr uint32_t kDoEmpty = 48;  // [stage] 8 warps: nobody reads the stage any more
  static constexpr uint32_t kGivenP = 64;   // the other block's p is there
  static constexpr uint32_t kGiven = 72;    // and what it computed of dp
  static constexpr uint32_t kTaken = 80;    // the other block: it has read what it was given
};

}  // namespace diffattn::cuda::sm90
