// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn::cuda::sm90 {

inline constexpr int kSwizzledRow = 128;             // bytes: 64 elements of 16 bits
inline constexpr int kMaxSmem = 232448;              // bytes of shared memory per block on sm_90
inline constexpr int kItemBytes = 48;                // sizeof(Item), see schedule.cuh
inline constexpr int kWarpgroup = 128;               // threads
inline constexpr int kConsumerRows = 64;             // query rows of a consumer: M of wgmma
inline constexpr int kItemRows = 2 * kConsumerRows;  // query rows of a work item

/// Keys of a tile. A consumer thread has 240 registers, of which O1 and O2 take kDv / 2 each, S
/// kBlockN / 2 and P kBlockN / 4. At D = 64, Dv = 128 a tile of 112 keys would spill a few bytes
/// and leave shared memory for one output buffer per warp instead of two.
template <int kD, int kDv>
inline constexpr int kForwardKeys = 96;
template <>
inline constexpr int kForwardKeys<64, 64> = 128;
template <>
inline constexpr int kForwardKeys<128, 128> = 80;  // two stages of 96 exceed shared memory

/// Keys of a tile under an additive mask with 16-bit or float biases. The tiles are smaller because
/// the biases of a tile stay in registers for both maps.
inline constexpr int kNarrowBiasKeys = 80, kWideBiasKeys = 64;

/// Tile shapes and the shared-memory plan of kernel.cuh, where a consumer computes both maps of 64
/// rows. Every tile is 1024-byte aligned and has swizzled rows of 64 elements. Offsets are in
/// bytes.
template <int kD, int kDv, int kKeys = kForwardKeys<kD, kDv>>
struct ForwardConfig {
  static constexpr int kHeadDim = kD, kValueDim = kDv;
  static constexpr int kBlockN = kKeys;
  static constexpr int kStages = kKeys <= 64 ? 3 : 2;
  static constexpr int kCluster = 1;                   // blocks
  static constexpr int kQBuffers = kD == 64 ? 2 : 1;   // two if shared memory allows
  static constexpr int kOutStages = kD == 64 ? 2 : 1;  // output buffers per warp
  // Work items in shared memory at a time. With two slots the scheduler could publish item n + 2
  // only when item n ends, which is too late for short items.
  static constexpr int kItemSlots = 4;
  static constexpr int kThreads = 3 * kWarpgroup;
  // 128 producer threads x 24 + 256 consumer threads x 240 registers fit into 65536.
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

  static constexpr int kKMap = kBlockN * kD * 2;        // one of k1, k2
  static constexpr int kVBytes = kBlockN * kDv * 2;     // v
  static constexpr int kQMap = kConsumerRows * kD * 2;  // one of q1, q2, for one consumer
  static constexpr int kQBytes = 2 * kQMap;             // q1 and q2, for one consumer
  static constexpr int kStageWarp = 16 * kDv * 2;       // output buffer: a warp's 16 rows

  static constexpr int kK = 0;                               // [stage][map][kBlockN, kD]
  static constexpr int kV = kK + kStages * 2 * kKMap;        // [stage][kBlockN, kDv]
  static constexpr int kQ = kV + kStages * kVBytes;          // [buffer][consumer][map][64, kD]
  static constexpr int kOut = kQ + kQBuffers * 2 * kQBytes;  // [warp][stage][16, kDv]
  static constexpr int kGains = kOut + 8 * kOutStages * kStageWarp;  // float [kDv]
  static constexpr int kItems = kGains + 4 * kDv;                    // [slot] Item
  // mbarriers, 8 bytes each. "Full": TMA has delivered the bytes. "Empty": all consumer warps that
  // read the buffer have released it. The comments give the number of arriving warps.
  static constexpr int kKFull = kItems + kItemSlots * kItemBytes;  // [stage]
  static constexpr int kKEmpty = kKFull + 8 * kStages;             // [stage], 8 warps, after S2
  static constexpr int kVFull = kKEmpty + 8 * kStages;             // [stage]
  static constexpr int kVEmpty = kVFull + 8 * kStages;             // [stage], 8 warps, after O2
  static constexpr int kQFull = kVEmpty + 8 * kStages;             // [buffer][consumer]
  static constexpr int kQEmpty = kQFull + 8 * 2 * kQBuffers;       // [buffer][consumer], 4 warps
  static constexpr int kItemFull = kQEmpty + 8 * 2 * kQBuffers;    // [slot], scheduler thread
  static constexpr int kItemEmpty = kItemFull + 8 * kItemSlots;    // [slot], 8 warps, at item end
  static constexpr int kTake = kItemEmpty + 8 * kItemSlots;        // loader, kTakeTiles before end
  static constexpr int kSmemBytes = kTake + 8;
  static_assert(kBlockN % 16 == 0 && kSmemBytes <= kMaxSmem);
};

}  // namespace diffattn::cuda::sm90
