// SPDX-License-Identifier: Apache-2.0
#include "tests/analysis/page.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace diffattn::analysis::testing {
namespace {

std::vector<uint8_t> from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<uint8_t> out;
  uint32_t word = 0;
  int held = 0;
  for (const char c : text) {
    if (c == '=') break;
    word = word << 6 | static_cast<uint32_t>(digits.find(c));
    held += 6;
    if (held >= 8) out.push_back(static_cast<uint8_t>(word >> (held -= 8)));
  }
  return out;
}

std::vector<uint8_t> inflated(const std::vector<uint8_t>& stream) {
  std::vector<uint8_t> out(size_t{1} << 26);
  uLongf size = out.size();
  EXPECT_EQ(uncompress(out.data(), &size, stream.data(), stream.size()), Z_OK);
  out.resize(size);
  return out;
}

/// Returns cell i of a tile of `cells` cells, whose bytes lie apart: first the lowest of all cells.
float read_value(const uint8_t* bytes, const std::string& format, size_t i, size_t cells,
                 float scale) {
  if (format == "f32") {
    uint32_t bits = 0;
    for (size_t byte = 0; byte < 4; ++byte) {
      bits |= static_cast<uint32_t>(bytes[i + byte * cells]) << (8 * byte);
    }
    return std::bit_cast<float>(bits);
  }
  if (format == "q8") {
    const auto q = static_cast<float>(static_cast<int8_t>(bytes[i]));
    return std::copysign(scale * (q / 127) * (q / 127), q);
  }
  const int bits = bytes[i] | bytes[i + cells] << 8;
  const int exponent = bits >> 10 & 31;
  const double fraction = (bits & 1023) / 1024.0;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
  return static_cast<float>(bits & 0x8000 ? -magnitude : magnitude);
}

}  // namespace

std::vector<float> Page::entries(size_t map, int at_level, const std::string& plane) const {
  const nlohmann::json& index = maps.at(map);
  const nlohmann::json stored = level(map, at_level);
  const int64_t side = index["tile"];
  const auto cells = [&](const char* axis) {
    const int64_t entries = index[axis];
    return (entries + (int64_t{1} << at_level) - 1) >> at_level;
  };
  const int64_t rows = cells("rows"), columns = cells("columns");
  const std::vector<uint8_t> cells_of_tiles = inflated(from_base64(block(stored["block"])));
  std::vector<float> out(static_cast<size_t>(rows * columns), 0.0f);
  for (const nlohmann::json& tile : stored["planes"][plane]) {
    const int64_t top = tile[0].get<int64_t>() * side, left = tile[1].get<int64_t>() * side;
    const int64_t wide = std::min(side, columns - left), high = std::min(side, rows - top);
    for (int64_t i = 0; i < wide * high; ++i) {
      out.at(static_cast<size_t>((top + i / wide) * columns + left + i % wide)) =
          read_value(cells_of_tiles.data() + tile[2].get<size_t>(), stored["format"],
                     static_cast<size_t>(i), static_cast<size_t>(wide * high), tile[3]);
    }
  }
  return out;
}

}  // namespace diffattn::analysis::testing
