// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn::cuda::sm80 {

/// Tile shapes of the forward for padded widths kD of q, k and kDv of v. A block has two groups of
/// warps, one per map, so that no thread holds two output accumulators. Limits: 255 registers a
/// thread, and 99 KB of shared memory a block on sm_86 and sm_89.
template <int kD, int kDv>
struct ForwardConfig {
  static constexpr int kHeadDim = kD;
  static constexpr int kValueDim = kDv;
  // 16-row fragments per warp. Two would let each fragment of K and V feed two products, but O
  // takes kDv / 2 registers a fragment, and what hides latency is warps: on an H200 at D = 64,
  // Dv = 128 two fragments and 8 warps a multiprocessor made 181 TFLOP/s, one and 16 warps 194.
  static constexpr int kMTiles = 1;
  static constexpr int kWarpsPerMap = 4;
  static constexpr int kBlockM = kWarpsPerMap * kMTiles * 16;
  static constexpr int kBlocksPerSm = kDv <= 128 ? 2 : 1;  // 128 registers a thread hold O of 128
  // Wide heads: more keys do not fit into shared memory twice. Others: 48 spill nothing, but make
  // 177 TFLOP/s where 64 make 194 (as above).
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
