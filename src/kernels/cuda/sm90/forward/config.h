// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn::cuda::sm90 {

inline constexpr int kSwizzledRow = 128;  // bytes: 64 elements of 16 bits
inline constexpr int kMaxSmem = 232448;   // bytes a block may have on sm_90
inline constexpr int kItemBytes = 48;     // an Item in shared memory
inline constexpr int kWarpgroup = 128;    // threads
inline constexpr int kConsumerRows = 64;  // query rows of a warpgroup's products
inline constexpr int kItemRows = 2 * kConsumerRows;

/// Keys of a tile. A consumer thread holds O1 and O2 (kDv / 2 registers each), S (kBlockN / 2) and
/// P (kBlockN / 4) of its 240. At D = 64, Dv = 128 the next more, 112, spill a few bytes and leave
/// room in shared memory for one tile of rows on their way out instead of two.
template <int kD, int kDv>
inline constexpr int kForwardKeys = 96;
template <>
inline constexpr int kForwardKeys<64, 64> = 128;
template <>
inline constexpr int kForwardKeys<128, 128> = 80;  // what fits into shared memory twice

/// Keys of a tile under an additive mask, whose numbers of a tile stay in registers for both maps:
/// 16 bits or float.
inline constexpr int kNarrowBiasKeys = 80, kWideBiasKeys = 64;

/// Tile shapes and the shared-memory plan of the forward whose consumers compute both maps of 64
/// rows. Every tile is 1024-byte aligned, in swizzled rows of 64 elements; offsets in bytes.
template <int kD, int kDv, int kKeys = kForwardKeys<kD, kDv>>
struct ForwardConfig {
  static constexpr int kHeadDim = kD, kValueDim = kDv;
  static constexpr int kBlockN = kKeys;
  static constexpr int kStages = kKeys <= 64 ? 3 : 2;
  static constexpr int kCluster = 1;                  // blocks
  static constexpr int kQBuffers = kD == 64 ? 2 : 1;  // two where there is room
  static constexpr int kOutStages = kD == 64 ? 2 : 1;
  // Items known at a time. With two, what is known of the next but one item would wait for the end
  // of this one, which is too late where items are short.
  static constexpr int kItemSlots = 4;
  static constexpr int kThreads = 3 * kWarpgroup;
  // What 65536 registers allow: 128 threads of 24 and 256 of 240.
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

  static constexpr int kKMap = kBlockN * kD * 2;        // one of k1, k2
  static constexpr int kVBytes = kBlockN * kDv * 2;     // all of a tile's v
  static constexpr int kQMap = kConsumerRows * kD * 2;  // one of q1, q2, for one consumer
  static constexpr int kQBytes = 2 * kQMap;
  static constexpr int kStageWarp = 16 * kDv * 2;  // one warp's 16 rows on their way out

  static constexpr int kK = 0;                               // [stage][map][kBlockN, kD]
  static constexpr int kV = kK + kStages * 2 * kKMap;        // [stage][kBlockN, kDv]
  static constexpr int kQ = kV + kStages * kVBytes;          // [buffer][consumer][map][64, kD]
  static constexpr int kOut = kQ + kQBuffers * 2 * kQBytes;  // [warp][stage][16, kDv]
  static constexpr int kGains = kOut + 8 * kOutStages * kStageWarp;  // float [kDv]
  static constexpr int kItems = kGains + 4 * kDv;                    // [slot] Item
  // Barriers, 8 bytes each. "full": the copies' bytes are in. "empty": every consumer warp that
  // reads it is done.
  static constexpr int kKFull = kItems + kItemSlots * kItemBytes;  // [stage]
  static constexpr int kKEmpty = kKFull + 8 * kStages;             // [stage], 8 warps, after S2
  static constexpr int kVFull = kKEmpty + 8 * kStages;             // [stage]
  static constexpr int kVEmpty = kVFull + 8 * kStages;             // [stage], 8 warps, after O2
  static constexpr int kQFull = kVEmpty + 8 * kStages;             // [buffer][consumer]
  static constexpr int kQEmpty = kQFull + 8 * 2 * kQBuffers;       // [buffer][consumer], 4 warps
  static constexpr int kItemFull = kQEmpty + 8 * 2 * kQBuffers;    // [slot], the scheduler
  static constexpr int kItemEmpty = kItemFull + 8 * kItemSlots;    // [slot], 8 warps, at its end
  static constexpr int kTake = kItemEmpty + 8 * kItemSlots;        // the loader, near an item's end
  static constexpr int kSmemBytes = kTake + 8;
  static_assert(kBlockN % 16 == 0 && kSmemBytes <= kMaxSmem);
};

}  // namespace diffattn::cuda::sm90
