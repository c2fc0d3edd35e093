// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Block sizes, each with the cache or register file it comes from. Tile shapes are in the isa.h of
/// each instruction set.
namespace diffattn::cpu {

/// Keys whose p (and ds) lie side by side as the left operand of a product. A multiple of every R
/// and every W (12 x 32, 6 x 16, 32 x 32: 96), so that key strips and panels start together. A
/// column panel of v (192 * 32 * 4 B = 24 KB) and a strip of p (12 * 192 * 4 B = 9 KB) then share a
/// 48 KB L1 while all strips of a block pass over the panel; with 384 keys that product measured
/// 8 % less.
inline constexpr int kKeyBlock = 192;

/// Row stride of p and ds: an odd number of cache lines, so that the rows of a strip start in
/// different L1 sets.
inline constexpr int kMapStride = kKeyBlock + 16;

/// The same for operands of two bf16.
inline constexpr int kPairMapStride = kKeyBlock / 2 + 16;

/// A row sum of exponentials outside [kTooSmall, kTooLarge) sends its row to the path that looks
/// for the maximum. fp32 sums of up to 2^60 such terms, times any finite v, still do not overflow.
inline constexpr float kTooLarge = 0x1p64f;
inline constexpr float kTooSmall = 0x1p-60f;

/// Up to such a reference score * scale - ref may be rounded once: the largest score then gives 1
/// within 2^-14. Beyond it the product is rounded first, as the maximum was.
inline constexpr float kNearRef = 0x1p10f;

/// The bits of sqrt(1/2) in fp32.
inline constexpr int kRootHalf = 0x3f3504f3;

inline constexpr float kLog2e = 1.44269504088896341f;
inline constexpr double kLn2 = 0.693147180559945309;

}  // namespace diffattn::cpu
