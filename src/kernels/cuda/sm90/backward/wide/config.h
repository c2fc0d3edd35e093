// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/sm90/backward/config.h"

namespace diffattn::cuda::sm90 {

/// Tile shapes and the shared-memory plan of wide/kernel.cuh for D = 128, Dv = 128 or 256. A
/// cluster of two blocks owns 128 keys. Block c computes map c + 1 for all of them, and dp and dv
/// for the 64 keys from 64 c on. A warpgroup keeps dk of 64 keys and half of the columns of dv,
/// which takes 64 + kValue / 4 registers per thread.
template <int kValue>
struct WideBackwardConfig {
  static constexpr int kHeadDim = 128;
  static constexpr int kValueDim = kValue;
  static constexpr int kBlockM = kUnitRows;
  static constexpr int kBlockN = 128;
  static constexpr int kKeyShift = 64;   // first key of warpgroup 1 in the tile
  static constexpr int kValueRows = 64;  // rows of a TMA box of v
  static constexpr int kCluster = 2;     // blocks
  static constexpr int kQStages = 3;     // stages of q and statistics
  static constexpr int kStages = 2;      // stages of dO
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kValueBlocks = kValue / 64;
  static constexpr int kItems = 0;  // no list of items in shared memory
  static constexpr uint32_t kItemAt = 0;

  // Shared memory: byte offsets. Matrices are column blocks of 64 elements, rows of 128 bytes.
  static constexpr uint32_t kBlockBytes = 64 * 128;        // 64 rows
  static constexpr uint32_t kKBlockBytes = kBlockN * 128;  // 128 rows
  static constexpr uint32_t kKBytes = 2 * kKBlockBytes;    // the block's map of k
  static constexpr uint32_t kVBytes = kValueBlocks * kBlockBytes;
  static constexpr uint32_t kQBytes = 2 * kBlockBytes;  // the block's map of q
  static constexpr uint32_t kDoBytes = kValueBlocks * kBlockBytes;
  static constexpr uint32_t kPickBytes = 8 * kStatRowBytes;

  static constexpr uint32_t kKAt = 0;
  static constexpr uint32_t kVAt = kKAt + kKBytes;
  static constexpr uint32_t kQAt = kVAt + kVBytes;              // [stage]
  static constexpr uint32_t kDoAt = kQAt + kQStages * kQBytes;  // [stage]
  static constexpr uint32_t kDsAt = kDoAt + kStages * kDoBytes;
  // The exchange between warpgroups and blocks, 16 bytes per thread at a time: p of this block's
  // map ("own") and of the other block's map, for the 64 keys of dv; then dp - delta of this
  // block's map, computed by the other block and by the other warpgroup ("own").
  static constexpr uint32_t kOwnPAt = kDsAt + kBlockN * 128;
  static constexpr uint32_t kOtherPAt = kOwnPAt + kBlockBytes;
  static constexpr uint32_t kOtherGradAt = kOtherPAt + kBlockBytes;
  static constexpr uint32_t kOwnGradAt = kOtherGradAt + kBlockBytes;  // 32 of the queries
  static constexpr uint32_t kExchangeBytes = kBlockBytes;             // received p, received dp
  static constexpr uint32_t kPickAt = kOwnGradAt + kBlockBytes / 2;
  static constexpr uint32_t kStatAt = kPickAt + 3 * kPickBytes;
  static constexpr uint32_t kBarrierAt = kStatAt + kQStages * kStatBytes;
  static constexpr uint32_t kKeyRangeAt = kBarrierAt + 11 * 8;
  static constexpr uint32_t kNextAt = kKeyRangeAt + 4;  // 2 words: next_begin, next_end
  static constexpr uint32_t kLoadAt = kNextAt + 8;      // 2 words: the next items to load, q and dO
  // wgmma reads the 1 KB of a unit's statistics twice, as an operand of 2 KB. compute-sanitizer
  // assumes a contiguous operand, so shared memory must extend 2 KB from the last statistics on.
  static constexpr uint32_t kStatOperandEnd = kStatAt + (kQStages - 1) * kStatBytes + 2048;
  static constexpr int kSmemBytes =
      static_cast<int>(kStatOperandEnd > kLoadAt + 8 ? kStatOperandEnd : kLoadAt + 8);
  static_assert(kSmemBytes <= 227 * 1024);

  // mbarriers, 8 bytes each at kBarrierAt. The comments say who arrives and what it announces.
  static constexpr uint32_t kKvFull = 0;     // TMA: k and v are loaded
  static constexpr uint32_t kQFull = 8;      // [stage] TMA: q and statistics are loaded
  static constexpr uint32_t kDoFull = 32;    // [stage] TMA: dO is loaded
  static constexpr uint32_t kDoEmpty = 48;   // [stage] 8 warps: done with dO
  static constexpr uint32_t kPFull = 64;     // bytes of the other block: its p has arrived
  static constexpr uint32_t kGradFull = 72;  // bytes of the other block: its dp - delta has arrived
  static constexpr uint32_t kExchangeEmpty = 80;  // the other block has read what this one sent
};

}  // namespace diffattn::cuda::sm90
