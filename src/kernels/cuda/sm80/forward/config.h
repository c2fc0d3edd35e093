// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn::cuda::sm80 {

/// Tile shapes of the forward in pair.cuh, in which a warp accumulates O of 32 rows. kD and kDv are
/// the padded widths of q, k and of v.
template <int kD, int kDv>
struct PairConfig {
  static constexpr bool kFits = kDv <= 128;  // O of 32 rows takes kDv registers of each thread
  static constexpr int kHeadDim = kD;
  static constexpr int kValueDim = kDv;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kBlockM = kWarps * 16;
  static constexpr int kBlocksPerSm = 2;
  static constexpr int kBlockN = kD > 64 ? 32 : 64;  // keys of one of the two pipeline stages
  static constexpr int kPart = 32;                   // keys whose scores fit the registers

  static constexpr int kQElements = kBlockM * kD;  // one of q1, q2
  static constexpr int kKElements = kBlockN * kD;  // one of k1, k2
  static constexpr int kStageElements = kBlockN * (2 * kD + kDv);
  static constexpr int kLoopBytes = 2 * (2 * kQElements + 2 * kStageElements);
  static constexpr int kPointerBytes = 3 * 8 * kThreads;  // each thread's pointers into k1, k2, v
  static constexpr int kWordBytes = 4 * kBlockM * kBlockN / 32;  // visibility words of a stage
  static constexpr int kSlotBytes = 2 * 12 * kWordBytes;         // mask bytes of two stages
  // Biases of one part, and the target of prefetch_bias: a word per 32-byte sector of the mask.
  static constexpr int kBiasBytes = 4 * (kBlockM * 40 + kBlockM * kBlockN / 8);
  static constexpr int kSmemBytes = kLoopBytes + kPointerBytes;
  static constexpr int kMaskedSmemBytes =
      kSmemBytes + (kWordBytes + kSlotBytes > kBiasBytes ? kWordBytes + kSlotBytes : kBiasBytes);
  // FinishPair reuses the loop's memory for half of o1 and o2, l1, l2 and store_unaligned's rows.
  static_assert(!kFits || 4 * kBlockM * (2 * kDv + 2) <= kLoopBytes);
  // sm_86 and sm_89 allow 99 KiB a block, of which the static PairBounds need a part.
  static_assert(!kFits || kMaskedSmemBytes <= 98 * 1024);
};

/// Tile shapes of the forward in kernel.cuh for padded widths kD of q, k and kDv of v. Half of a
/// block's warps compute map 1 and the other half map 2, so that no thread holds two output
/// accumulators. Limits: 255 registers a thread, and 99 KiB of shared memory a block on sm_86 and
/// sm_89.
template <int kD, int kDv>
struct ForwardConfig {
  static constexpr int kHeadDim = kD;
  static constexpr int kValueDim = kDv;
  // 16-row fragments per warp. With two, each fragment of k and v would feed two products, but O
  // takes kDv / 2 registers per fragment.
  static constexpr int kMTiles = 1;
  static constexpr int kWarpsPerMap = 4;
  static constexpr int kBlockM = kWarpsPerMap * kMTiles * 16;
  static constexpr int kBlocksPerSm = 1;
  // For wide heads, two stages of 64 keys do not fit into shared memory.
  static constexpr int kBlockN = kD > 64 ? 32 : 64;
  static constexpr int kStages = 2;  // one stage loads while the other is in use
  static constexpr int kThreads = 2 * kWarpsPerMap * 32;

  static constexpr int kQElements = kBlockM * kD;  // one of q1, q2
  static constexpr int kKElements = kBlockN * kD;  // one of k1, k2
  static constexpr int kStageElements = kBlockN * (2 * kD + kDv);
  static constexpr int kOPitch = kDv + 8;  // floats; 8 more let quads store to different banks
  static constexpr int kLoopBytes = 2 * (2 * kQElements + kStages * kStageElements);
  static constexpr int kEpilogueBytes = 4 * (kBlockM * kOPitch + 2 * kBlockM);
  static constexpr int kSmemBytes = kLoopBytes > kEpilogueBytes ? kLoopBytes : kEpilogueBytes;
  static_assert(kSmemBytes <= 99 * 1024);
};

}  // namespace diffattn::cuda::sm80
