// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "diffattn/analysis/report.h"

namespace diffattn::analysis {

/// Rows and columns of a tile. Tiles at the right and lower edges are smaller.
constexpr int64_t kTileSide = 256;

/// The position of a tile in the bytes of its block.
struct TilePlace {
  int64_t tile_row = 0;
  int64_t tile_column = 0;
  uint64_t offset = 0;  // in the block before compression
  float scale = 1;      // kByte: the largest magnitude in the tile
};

/// Appends the tiles of a map to block, except those that are all zero. Returns their positions.
///
/// A tile holds the lowest byte of all its cells, then the second byte of all, and so on: equal
/// exponents are then adjacent, and zlib compresses them.
///
/// kFloat32 and kFloat16 are little-endian IEEE. kByte is a signed byte q in [-127, 127] that
/// stands for sign(q) scale (q / 127)^2, which gives small weights about the same relative
/// precision as large ones. precision must not be kAuto.
std::vector<TilePlace> append_tiles(std::vector<uint8_t>& block, std::span<const float> values,
                                    int64_t rows, int64_t columns, Precision precision);

/// Replaces kAuto with the format for a map of that size; returns other values unchanged.
Precision resolved(Precision precision, int64_t rows, int64_t columns);

/// Returns "f32", "f16" or "q8".
const char* format_name(Precision precision);

}  // namespace diffattn::analysis
