// SPDX-License-Identifier: Apache-2.0
#include "analysis/report/tiles.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace diffattn::analysis {
namespace {

constexpr int64_t kMaxFloat32Side = 256;
constexpr int64_t kMaxFloat16Side = 1024;

// Round to nearest even; weights beyond 65504 do not occur, but become infinite like in IEEE.
uint16_t half_bits(float value) {
  const uint32_t word = std::bit_cast<uint32_t>(value);
  const uint32_t sign = word >> 16 & 0x8000u;
  const uint32_t magnitude = word & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Adding 1/2 puts the step of a half subnormal, 2^-24, at the last place of a float.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}

uint8_t byte_of(float value, float scale) {
  const float root = std::sqrt(std::min(1.0f, std::fabs(value) / scale));
  const int level = static_cast<int>(std::lround(127.0f * root));
  return static_cast<uint8_t>(value < 0 ? -level : level);
}

uint32_t bits_of(float value, float scale, Precision precision) {
  if (precision == Precision::kByte) return byte_of(value, scale);
  return precision == Precision::kFloat16 ? half_bits(value) : std::bit_cast<uint32_t>(value);
}

int bytes_of(Precision precision) {
  return precision == Precision::kByte ? 1 : precision == Precision::kFloat16 ? 2 : 4;
}

}  // namespace

std::vector<TilePlace> append_tiles(std::vector<uint8_t>& block, std::span<const float> values,
                                    int64_t rows, int64_t columns, Precision precision) {
  std::vector<TilePlace> places;
  for (int64_t top = 0; top < rows; top += kTileSide) {
    const int64_t bottom = std::min(rows, top + kTileSide);
    for (int64_t left = 0; left < columns; left += kTileSide) {
      const int64_t right = std::min(columns, left + kTileSide);
      float scale = 0;
      for (int64_t row = top; row < bottom; ++row) {
        for (int64_t column = left; column < right; ++column) {
          scale = std::max(scale, std::fabs(values[static_cast<size_t>(row * columns + column)]));
        }
      }
      if (scale == 0) continue;
      places.push_back({top / kTileSide, left / kTileSide, block.size(), scale});
      const auto cells = static_cast<size_t>((bottom - top) * (right - left));
      size_t at = block.size();
      block.resize(at + cells * static_cast<size_t>(bytes_of(precision)));
      for (int64_t row = top; row < bottom; ++row) {
        for (int64_t column = left; column < right; ++column, ++at) {
          const float value = values[static_cast<size_t>(row * columns + column)];
          const uint32_t bits = bits_of(value, scale, precision);
          for (int byte = 0; byte < bytes_of(precision); ++byte) {
            block[at + static_cast<size_t>(byte) * cells] =
                static_cast<uint8_t>(bits >> (8 * byte));
          }
        }
      }
    }
  }
  return places;
}

Precision resolved(Precision precision, int64_t rows, int64_t columns) {
  if (precision != Precision::kAuto) return precision;
  const int64_t side = std::max(rows, columns);
  if (side <= kMaxFloat32Side) return Precision::kFloat32;
  return side <= kMaxFloat16Side ? Precision::kFloat16 : Precision::kByte;
}

const char* format_name(Precision precision) {
  if (precision == Precision::kFloat32) return "f32";
  return precision == Precision::kFloat16 ? "f16" : "q8";
}

}  // namespace diffattn::analysis
