// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/picture/colour.h"

namespace diffattn::analysis {

/// The width and height of a character and the space after it, at scale 1.
constexpr int64_t kGlyphWidth = 6;
constexpr int64_t kGlyphHeight = 9;

/// An image in memory. Drawing outside of it has no effect.
class Raster {
 public:
  Raster(int64_t width, int64_t height, Rgb background);

  int64_t width() const { return width_; }
  int64_t height() const { return height_; }
  /// The pixels, [height, width, 3].
  const std::vector<uint8_t>& bytes() const { return bytes_; }

  void fill(int64_t x, int64_t y, int64_t width, int64_t height, Rgb colour);
  /// Draws text to the right; (x, y) is its upper left corner.
  void text(int64_t x, int64_t y, std::string_view text, Rgb colour, int64_t scale = 1);
  /// Draws text upwards, rotated by 90 degrees; (x, y) is its lower left corner.
  void text_up(int64_t x, int64_t y, std::string_view text, Rgb colour, int64_t scale = 1);

 private:
  int64_t width_;
  int64_t height_;
  std::vector<uint8_t> bytes_;
};

/// Returns the image as a PNG file.
std::string encode_png(const Raster& raster);

}  // namespace diffattn::analysis
