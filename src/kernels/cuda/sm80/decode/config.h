// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace diffattn::cuda::sm80 {

/// Most query rows of a sequence that the split over keys is made for.
inline constexpr int64_t kDecodeRows = 16;
/// Fewest keys for which it pays: below, one block per head is as fast.
inline constexpr int64_t kDecodeKeys = 1024;

/// Keys of one block, from the length of the cache and its heads alone, so that the order of sums
/// depends on neither the batch nor the GPU: 128 blocks for a sequence, one for almost every
/// multiprocessor of an H200, whose memory they keep busy; twice as many would leave twice the
/// parts to combine. At least 256 keys (less would be all ramp), at most 2048.
inline int decode_split_keys(int64_t seq_k, int64_t kv_heads) {
  constexpr int64_t kBlocks = 128, kStep = 64;
  const int64_t keys = (seq_k * kv_heads / kBlocks + kStep - 1) / kStep * kStep;
  return static_cast<int>(std::clamp<int64_t>(keys, 256, 2048));
}

/// One block: 8 kFragments packed rows. Each warp has keys of its own, both maps, and a ring of
/// stages that only it fills and reads, so that warps never wait for one another.
template <int kD, int kDv, int kM>
struct DecodeConfig {
  static constexpr int kHeadDim = kD;
  static constexpr int kValueDim = kDv;
  static constexpr int kFragments = kM;
  static constexpr int kRows = 8 * kM;  // rows 0-7 of a 16-row fragment are map 1, 8-15 map 2
  static constexpr int kKeys = 16;      // of one stage
  static constexpr int kStageElements = kKeys * (2 * kD + kDv);
  // As many bytes under way as 99 KB (sm_86, sm_89) hold: 8 KB stages four warps deep at D = 64,
  // Dv = 128. Two blocks then keep 128 KB under way on a multiprocessor of an H200; 4.3 TB/s times
  // 700 ns are 23 KB.
  static constexpr int kWarps = 2 * kStageElements > 12 * 1024 ? 2 : 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kStages = 96 * 1024 / (2 * kStageElements * kWarps) > 4
                                     ? 4
                                     : 96 * 1024 / (2 * kStageElements * kWarps);

  static constexpr int kOPitch = kDv + 8;  // floats; 8 more keep quads' stores off the same banks
  static constexpr int kLoopBytes = 2 * kWarps * kStages * kStageElements;
  static constexpr int kMergeBytes = 4 * kWarps * 16 * kM * (kOPitch + 2);
  static constexpr int kSmemBytes = kLoopBytes > kMergeBytes ? kLoopBytes : kMergeBytes;
  static_assert(kSmemBytes <= 99 * 1024 && kStages >= 2);
};

}  // namespace diffattn::cuda::sm80
