// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace diffattn::cuda::sm80 {

/// Most query rows of a sequence that the split over keys is made for.
inline constexpr int64_t kDecodeRows = 16;
/// Fewest keys for which it pays: below, one block per head is as fast.
inline constexpr int64_t kDecodeKeys = 1024;
/// Keys of one block. Fixed, so that the order of sums depends on neither the batch nor the GPU;
/// small enough that 8 kv heads of 8k keys fill 132 multiprocessors, large enough that what a block
/// writes (16 rows x 2 maps x Dv floats) is a twentieth of what it reads.
inline constexpr int kSplitKeys = 512;

/// One block: 16 packed rows, a group of warps per map, 16 keys of each tile per warp.
template <int kD, int kDv>
struct DecodeConfig {
  static constexpr int kHeadDim = kD;
  static constexpr int kValueDim = kDv;
  static constexpr int kRows = 16;
  // Small blocks: four of them load in turn on a multiprocessor, where a block of 8 warps left room
  // for two (6 % slower at D = 64, Dv = 128 on an H200).
  static constexpr int kWarpsPerMap = 2;
  static constexpr int kThreads = 2 * kWarpsPerMap * 32;
  static constexpr int kBlockN = kWarpsPerMap * 16;

  static constexpr int kQElements = kRows * kD;
  static constexpr int kKElements = kBlockN * kD;
  static constexpr int kStageElements = kBlockN * (2 * kD + kDv);
  static constexpr int kOPitch = kDv + 8;  // floats; 8 more keep quads' stores off the same banks
  static constexpr int kLoopBytes = 2 * (2 * kQElements + 2 * kStageElements);
  static constexpr int kMergeBytes = 4 * 2 * kWarpsPerMap * kRows * (kOPitch + 2);
  static constexpr int kSmemBytes = kLoopBytes > kMergeBytes ? kLoopBytes : kMergeBytes;
  static_assert(kSmemBytes <= 99 * 1024 && kSplitKeys % kBlockN == 0);
};

}  // namespace diffattn::cuda::sm80
