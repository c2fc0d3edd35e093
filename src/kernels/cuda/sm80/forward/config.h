// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn::cuda::sm80 {

/// Tile shapes of the forward where a warp holds the outputs of 32 rows, see pair.cuh.
template <int kD, int kDv>
struct PairConfig {
  static constexpr bool kFits = kDv <= 128;  // kDv registers for 32 rows
  static constexpr int kHeadDim = kD;
  static constexpr int kValueDim = kDv;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kBlockM = kWarps * 16;
  static constexpr int kBlocksPerSm = 2;
  static constexpr int kBlockN = kD > 64 ? 32 : 64;  // keys of a stage; two are loaded in turn
  static constexpr int kPart = 32;                   // keys whose scores are in registers

  static constexpr int kQElements = kBlockM * kD;  // one of q1, q2
  static constexpr int kKElements = kBlockN * kD;  // one of k1, k2
  static constexpr int kStageElements = kBlockN * (2 * kD + kDv);
  static constexpr int kLoopBytes = 2 * (2 * kQElements + 2 * kStageElements);
  static constexpr int kPointerBytes = 3 * 8 * kThreads;  // where each thread loads k1, k2, v from
  static constexpr int kWordBytes = 4 * kBlockM * kBlockN / 32;
  static constexpr int kSlotBytes = 2 * 12 * kWordBytes;  // two stages of bytes for the words
  // The biases of a part, and a word for each 32 bytes of a stage's, see bias_tile.cuh.
  static constexpr int kBiasBytes = 4 * (kBlockM * 40 + kBlockM * kBlockN / 8);
  static constexpr int kSmemBytes = kLoopBytes + kPointerBytes;
  static constexpr int kMaskedSmemBytes =
      kSmemBytes + (kWordBytes + kSlotBytes > kBiasBytes ? kWordBytes + kSlotBytes : kBiasBytes);
  static_assert(!kFits ||
                4 * kBlockM * (2 * kDv + 2) <= kLoopBytes);  // half of o1 and o2, l, and rows
  static_assert(!kFits || kMaskedSmemBytes <= 98 * 1024);    // sm_86 and sm_89
};

/// Tile shapes of the forward for padded widths kD of q, k and kDv of v. A block has two groups of
/// warps, one per map, so that no thread holds two output accumulators. Limits: 255 registers a
/// thread, and 99 KB of shared memory a block on sm_86 and sm_89.
template <int kD, int kDv>
struct ForwardConfig {
  static constexpr int kHeadDim = kD;
  static constexpr int kValueDim = kDv;
  // 16-row fragments per warp. Two would let each fragment of K and V feed two products, but O
  // takes kDv / 2 registers a fragment.
  static constexpr int kMTiles = 1;
  static constexpr int kWarpsPerMap = 4;
  static constexpr int kBlockM = kWarpsPerMap * kMTiles * 16;
  static constexpr int kBlocksPerSm = 1;
  // Wide heads: more keys do not fit into shared memory twice.
  static constexpr int kBlockN = kD > 64 ? 32 : 64;
  static constexpr int kStages = 2;  // load the next keys while these are used
  static constexpr int kThreads = 2 * kWarpsPerMap * 32;

  static constexpr int kQElements = kBlockM * kD;  // one of q1, q2
  static constexpr int kKElements = kBlockN * kD;  // one of k1, k2
  static constexpr int kStageElements = kBlockN * (2 * kD + kDv);
  static constexpr int kOPitch = kDv + 8;  // floats; 8 more keep quads' stores off the same banks
  static constexpr int kLoopBytes = 2 * (2 * kQElements + kStages * kStageElements);
  static constexpr int kEpilogueBytes = 4 * (kBlockM * kOPitch + 2 * kBlockM);
  static constexpr int kSmemBytes = kLoopBytes > kEpilogueBytes ? kLoopBytes : kEpilogueBytes;
  static_assert(kSmemBytes <= 99 * 1024);
};

}  // namespace diffattn::cuda::sm80
