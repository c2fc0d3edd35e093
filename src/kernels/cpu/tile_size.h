// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Block sizes and numeric limits, each with its reason. The tile shapes R x W are in each isa.h;
/// block.h explains the terms.
namespace diffattn::cpu {

/// Keys per key block: the length of the sum in one product p v or ds k. It is a multiple of every
/// R and W (12 x 32, 6 x 16 and 32 x 32 have the common multiple 96), so that key strips and panels
/// start together. A column panel of v (192 * 32 * 4 B = 24 KB) and a strip of p
/// (12 * 192 * 4 B = 9 KB) share a 48 KB L1 while all strips of a block use the panel. With 384
/// keys the product p v reached 8 % fewer FLOP/s.
inline constexpr int kKeyBlock = 192;

/// Keys that one chain of fp32 sums in p v adds before it is added to O. The rounding error of O
/// against float64 at N = 2048, D = 64 is 8.9e-7 with one chain over all keys, 4.6e-7 with chains
/// of 192 keys and 4.3e-7 with 96, where torch's matmul and softmax make 4.5e-7. Most of the rest
/// is that of the scores.
inline constexpr int kSumKeys = 96;

/// Row stride of p and ds in floats: an odd number of cache lines, so that the rows of a strip
/// start in different L1 sets.
inline constexpr int kMapStride = kKeyBlock + 16;

/// Row stride of p and ds in operands of two bf16, for the same reason.
inline constexpr int kPairMapStride = kKeyBlock / 2 + 16;

/// If a row's sum of exponentials leaves [kTooSmall, kTooLarge), Maps makes the row maximum its ref
/// and recomputes the key block. The limits leave fp32 (2^-126 to 2^128) a margin of 2^60 on both
/// sides: 1 / l does not overflow, and entries far below the row maximum do not vanish.
inline constexpr float kTooLarge = 0x1p64f;
inline constexpr float kTooSmall = 0x1p-60f;

/// Largest |ref| for which one fused instruction computes score * scale - ref. ref is a rounded
/// product, so the largest score then gives e = 1 with an error up to 2^-14. For a larger ref the
/// product is rounded before the subtraction, exactly as the maximum was.
inline constexpr float kNearRef = 0x1p10f;

/// The bit pattern of sqrt(1/2) in fp32.
inline constexpr int kRootHalf = 0x3f3504f3;

inline constexpr float kLog2e = 1.44269504088896341f;
inline constexpr double kLn2 = 0.693147180559945309;

}  // namespace diffattn::cpu
