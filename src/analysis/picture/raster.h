// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/picture/colour.h"

namespace diffattn::analysis {

/// Width and height of a character with its space, at scale 1.
constexpr int64_t kGlyphWidth = 6;
constexpr int64_t kGlyphHeight = 9;

/// An image in memory. Whatever lies outside is not drawn.
class Raster {
 public:
  Raster(int64_t width, int64_t height, Rgb background);

  int64_t width() const { return width_; }
  int64_t height() const { return height_; }
  /// [height, width, 3]
  const std::vector<uint8_t>& bytes() const { return bytes_; }

  void fill(int64_t x, int64_t y, int64_t width, int64_t height, Rgb colour);
  /// From the upper left corner to the right.
  void text(int64_t x, int64_t y, std::string_view text, Rgb colour, int64_t scale = 1);
  /// From the lower left corner upwards, turned by a quarter.
  void text_up(int64_t x, int64_t y, std::string_view text, Rgb colour, int64_t scale = 1);

 private:
  int64_t width_;
  int64_t height_;
  std::vector<uint8_t> bytes_;
};

/// The image as a PNG file.
std::string encode_png(const Raster& raster);

}  // namespace diffattn::analysis
