// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn::cuda::sm80 {

/// The gradients that one launch of the pass over keys computes. A warp accumulates them for 16
/// keys in registers, so wide heads need two launches.
enum KeyOutputs : int { kDv = 1, kDk = 2, kDvAndDk = 3 };

/// Shared memory in bytes that a block may have on every GPU since sm_80; sm_86 has the least.
inline constexpr int kMaxSmemBytes = 99 * 1024;

/// Tile shapes of the pass over keys (keys.cuh): 16 keys a warp, kBlockM queries a step.
template <int kD, int kValue, int kWhich>
struct KeysConfig {
  static constexpr int kHeadDim = kD;
  static constexpr int kValueDim = kValue;
  static constexpr int kOutputs = kWhich;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kBlockN = kWarps * 16;
  static constexpr int kBlockM = 32;   // s1, s2, dp take 16 registers each, dk and dv up to 128
  static constexpr int kRowStats = 5;  // lse1, lse2, delta1, delta2, lambda

  static constexpr int kKElements = kBlockN * kD;
  static constexpr int kQElements = kBlockM * kD;
  static constexpr int kKeyBytes = 2 * (2 * kKElements + (kWhich & kDk ? kBlockN * kValue : 0));
  static constexpr int kStatBytes = 4 * kRowStats * kBlockM;
  static constexpr int kStageBytes = 2 * kBlockM * (2 * kD + kValue) + kStatBytes;
  // If two stages do not fit, a second block on the SM hides the loads of a single stage.
  static constexpr int kStages = kKeyBytes + 2 * kStageBytes <= kMaxSmemBytes ? 2 : 1;
  static constexpr int kSmemBytes = kKeyBytes + kStages * kStageBytes;
  static_assert(kSmemBytes <= kMaxSmemBytes);
};

/// True if the accumulators of dk1, dk2 and dv fit the registers together, so that one pass over
/// the keys can compute all gradients. They take (2 kD + kValue) / 2 <= 128 registers of a thread.
template <int kD, int kValue>
inline constexpr bool kFusedFits = 2 * kD + kValue <= 256;

/// Tile shapes of the fused pass (fused.cuh): kKeys keys a block, 32 per pair of warps, and kBlockM
/// queries a step.
template <int kD, int kValue, int kKeys, int kBuffers>
struct FusedConfig {
  static constexpr int kHeadDim = kD;
  static constexpr int kValueDim = kValue;
  static constexpr int kBlockN = kKeys;
  static constexpr int kBlockM = 64;
  static constexpr int kWarps = kKeys / 16;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kBlocksPerSm = 8 / kWarps;  // 8 warps of 255 registers fill an SM
  static constexpr int kRowStats = 5;              // lse1, lse2, delta1, delta2, lambda
  static constexpr int kStages = kBuffers;

  static constexpr int kKElements = kBlockN * kD;
  static constexpr int kQElements = kBlockM * kD;
  static constexpr int kKeyBytes = 2 * kBlockN * (2 * kD + kValue);
  static constexpr int kStageBytes = 2 * kBlockM * (2 * kD + kValue) + 4 * kRowStats * kBlockM;
  static constexpr int kDsElements = kBlockM * kBlockN;  // ds of one map
  static constexpr int kSmemBytes = kKeyBytes + kStages * kStageBytes + 3 * 2 * kDsElements;
};

/// Tile shapes of the fused pass for plain problems (plain.cuh).
template <int kD>
struct PlainConfig {
  static constexpr int kHeadDim = kD;
  static constexpr int kValueDim = 2 * kD;
  static constexpr int kBlockN = 128;
  static constexpr int kBlockM = 64;
  static constexpr int kThreads = 256;
  static constexpr int kThreadSlots = 7;  // 8-byte slots per thread, see BackwardPlain::Slot
  static constexpr int kRowStats = 5;     // lse1, lse2, delta1, delta2, lambda
  static constexpr int kStageBytes = 2 * kBlockM * 4 * kD + 4 * kRowStats * kBlockM;
  static constexpr int kSmemBytes = 2 * kBlockN * 4 * kD + 2 * kStageBytes +
                                    3 * 2 * kBlockM * kBlockN + 8 * kThreadSlots * kThreads;
};

/// Tile shapes of the pass over queries (queries.cuh): 16 rows a warp, kBlockN keys a step.
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
