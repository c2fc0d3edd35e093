// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace diffattn::cuda::sm80 {

/// Largest seq_q for which we split the keys over blocks.
inline constexpr int64_t kDecodeRows = 16;
/// Smallest seq_k for which we split them. With fewer keys one block per head is as fast.
inline constexpr int64_t kDecodeKeys = 1024;

/// Returns the keys of one split, 256 to 2048. They depend only on the cache length and its heads,
/// so that the order of summation is the same for every batch size and GPU. 128 blocks per sequence
/// occupy almost every SM of an H200 (132) and saturate its memory; more splits would only cost
/// more to combine. A block with fewer than 256 keys would mostly wait for its first loads.
inline int decode_split_keys(int64_t seq_k, int64_t kv_heads) {
  constexpr int64_t kBlocks = 128, kStep = 64;
  const int64_t keys = (seq_k * kv_heads / kBlocks + kStep - 1) / kStep * kStep;
  return static_cast<int>(std::clamp<int64_t>(keys, 256, 2048));
}

/// The cases that have decode kernels of their own. Code that never runs still costs time in
/// kernels of a few microseconds, because instructions around it are fetched from memory.
enum class DecodeKind {
  kGeneral,
  kPlain,       // one query per sequence, no mask, aligned rows exactly as wide as the tiles
  kPlainAlone,  // the same with one block per SM and twice the warps, for fewer blocks than SMs
};

/// Tile shapes of decode. A block computes 8 kM packed rows. Each warp processes its own keys for
/// both maps and has its own ring of pipeline stages, so that warps never wait for one another.
template <int kD, int kDv, int kM, DecodeKind kKind = DecodeKind::kGeneral>
struct DecodeConfig {
  static constexpr bool kPlain = kKind != DecodeKind::kGeneral;
  static constexpr bool kAlone = kKind == DecodeKind::kPlainAlone;
  static constexpr int kHeadDim = kD;
  static constexpr int kValueDim = kDv;
  static constexpr int kFragments = kM;
  static constexpr int kRows = 8 * kM;  // rows 0-7 of a 16-row fragment are map 1, 8-15 map 2
  static constexpr int kKeys = 16;      // keys of one stage
  static constexpr int kStageElements = kKeys * (2 * kD + kDv);
  // The stages fill the 99 KiB a block has on sm_86 and sm_89. At D = 64, Dv = 128, four warps have
  // three stages of 8 KiB, of which two are in flight: two blocks keep 128 KiB in flight on an SM.
  // An H200 needs 23 KB per SM to cover 700 ns of latency at 4.3 TB/s.
  static constexpr int kWarps = (2 * kStageElements > 12 * 1024 ? 2 : 4) * (kAlone ? 2 : 1);
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kBlocks = kAlone ? 1 : 2;  // per SM
  static constexpr int kFit = 96 * 1024 / (2 * kStageElements * kWarps);
  static constexpr int kStages = kAlone ? 2 : kFit > 4 ? 4 : kFit;

  static constexpr int kOPitch = kDv + 8;  // floats; 8 more let quads store to different banks
  static constexpr int kLoopBytes = 2 * kWarps * kStages * kStageElements;
  static constexpr int kMergeBytes = 4 * kWarps * 16 * kM * (kOPitch + 2);
  static constexpr int kSmemBytes = kLoopBytes > kMergeBytes ? kLoopBytes : kMergeBytes;
  static_assert(kSmemBytes <= (kAlone ? 2 : 1) * 99 * 1024 && kStages >= 2);
};

}  // namespace diffattn::cuda::sm80
