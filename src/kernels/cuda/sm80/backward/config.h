// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn::cuda::sm80 {

/// Which gradients one launch over the keys makes. A warp keeps them for 16 keys in registers, so
/// that wide heads need two launches.
enum KeyOutputs : int { kDv = 1, kDk = 2, kDvAndDk = 3 };

/// Shared memory that a block may have on every GPU since sm_80 (sm_86 and sm_89 are the smallest).
inline constexpr int kMaxSmemBytes = 99 * 1024;

/// Tiles of the pass over keys: 16 keys a warp, kBlockM queries a step.
template <int kD, int kValue, int kWhich>
struct KeysConfig {
  static constexpr int kHeadDim = kD;
  static constexpr int kValueDim = kValue;
  static constexpr int kOutputs = kWhich;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kBlockN = kWarps * 16;
  static constexpr int kBlockM = 32;   // s1, s2 and dp take 16 registers each beside up to 128 sums
  static constexpr int kRowStats = 5;  // lse1, lse2, delta1, delta2, lambda

  static constexpr int kKElements = kBlockN * kD;
  static constexpr int kQElements = kBlockM * kD;
  static constexpr int kKeyBytes = 2 * (2 * kKElements + (kWhich & kDk ? kBlockN * kValue : 0));
  static constexpr int kStatBytes = 4 * kRowStats * kBlockM;
  static constexpr int kStageBytes = 2 * kBlockM * (2 * kD + kValue) + kStatBytes;
  // One stage where two do not fit: then a second block on the multiprocessor hides the loads.
  static constexpr int kStages = kKeyBytes + 2 * kStageBytes <= kMaxSmemBytes ? 2 : 1;
  static constexpr int kSmemBytes = kKeyBytes + kStages * kStageBytes;
  static_assert(kSmemBytes <= kMaxSmemBytes);
};

/// Can one pass over the keys make all gradients? Wider heads have no registers for the sums of dk
/// and dv: 128 of a thread.
template <int kD, int kValue>
inline constexpr bool kFusedFits = 2 * kD + kValue <= 256;

/// Tiles of the one pass over keys: kKeys keys a block, 32 a pair of warps, kBlockM queries a step.
template <int kD, int kValue, int kKeys, int kBuffers>
struct FusedConfig {
  static constexpr int kHeadDim = kD;
  static constexpr int kValueDim = kValue;
  static constexpr int kBlockN = kKeys;
  static constexpr int kBlockM = 64;
  static constexpr int kWarps = kKeys / 16;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kBlocksPerSm = 8 / kWarps;  // 255 registers a thread
  static constexpr int kRowStats = 5;              // lse1, lse2, delta1, delta2, lambda
  static constexpr int kStages = kBuffers;

  static constexpr int kKElements = kBlockN * kD;
  static constexpr int kQElements = kBlockM * kD;
  static constexpr int kKeyBytes = 2 * kBlockN * (2 * kD + kValue);
  static constexpr int kStageBytes = 2 * kBlockM * (2 * kD + kValue) + 4 * kRowStats * kBlockM;
  static constexpr int kDsElements = kBlockM * kBlockN;  // of one map
  static constexpr int kSmemBytes = kKeyBytes + kStages * kStageBytes + 3 * 2 * kDsElements;
};

/// Tiles of the one pass where it is plain, see plain.cuh.
template <int kD>
struct PlainConfig {
  static constexpr int kHeadDim = kD;
  static constexpr int kValueDim = 2 * kD;
  static constexpr int kBlockN = 128;
  static constexpr int kBlockM = 64;
  static constexpr int kThreads = 256;
  static constexpr int kPlaces = 7;    // of 8 bytes, for each thread
  static constexpr int kRowStats = 5;  // lse1, lse2, delta1, delta2, lambda
  static constexpr int kStageBytes = 2 * kBlockM * 4 * kD + 4 * kRowStats * kBlockM;
  static constexpr int kSmemBytes =
      2 * kBlockN * 4 * kD + 2 * kStageBytes + 3 * 2 * kBlockM * kBlockN + 8 * kPlaces * kThreads;
};

/// Tiles of the pass over queries: 16 rows a warp, kBlockN keys a step.
template <int kD, int kValue>
struct QueriesConfig {
  static constexpr int kHeadDim = kD;
  static constexpr int kValueDim = kValue;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kBlockM = kWarps * 16;
  static constexpr int kBlockN = 32;

  static constexpr int kQElements = kBlockM * kD;
  static constexpr int kKElements = kBlockN * kD;
  static constexpr int kQueryBytes = 2 * kBlockM * (2 * kD + kValue);
  static constexpr int kStageBytes = 2 * kBlockN * (2 * kD + kValue);
  static constexpr int kStages = kQueryBytes + 2 * kStageBytes <= kMaxSmemBytes ? 2 : 1;
  static constexpr int kSmemBytes = kQueryBytes + kStages * kStageBytes;
  static_assert(kSmemBytes <= kMaxSmemBytes);
};

}  // namespace diffattn::cuda::sm80
