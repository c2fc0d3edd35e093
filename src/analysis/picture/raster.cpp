// SPDX-License-Identifier: Apache-2.0
#include "analysis/picture/raster.h"

#include <algorithm>

#include "analysis/picture/font.h"
#include "analysis/report/text.h"

namespace diffattn::analysis {
namespace {

// Calls draw(column, row) for every pixel of the text at scale 1.
template <typename Draw>
void each_pixel(std::string_view text, Draw draw) {
  int64_t left = 0;
  for (const char32_t character : code_points(text)) {
    const Glyph& glyph = glyph_of(character);
    for (int64_t row = 0; row < 7; ++row) {
      for (int64_t column = 0; column < 5; ++column) {
        if (glyph[static_cast<size_t>(row)] >> (4 - column) & 1) draw(left + column, row);
      }
    }
    left += kGlyphWidth;
  }
}

}  // namespace

Raster::Raster(int64_t width, int64_t height, Rgb background)
    : width_(width), height_(height), bytes_(static_cast<size_t>(width * height * 3)) {
  fill(0, 0, width, height, background);
}

void Raster::fill(int64_t x, int64_t y, int64_t width, int64_t height, Rgb colour) {
  const int64_t right = std::min(width_, x + width);
  const int64_t bottom = std::min(height_, y + height);
  for (int64_t row = std::max<int64_t>(0, y); row < bottom; ++row) {
    for (int64_t column = std::max<int64_t>(0, x); column < right; ++column) {
      uint8_t* pixel = bytes_.data() + (row * width_ + column) * 3;
      pixel[0] = colour.r;
      pixel[1] = colour.g;
      pixel[2] = colour.b;
    }
  }
}

void Raster::text(int64_t x, int64_t y, std::string_view text, Rgb colour, int64_t scale) {
  each_pixel(text, [&](int64_t column, int64_t row) {
    fill(x + column * scale, y + row * scale, scale, scale, colour);
  });
}

void Raster::text_up(int64_t x, int64_t y, std::string_view text, Rgb colour, int64_t scale) {
  each_pixel(text, [&](int64_t column, int64_t row) {
    fill(x + row * scale, y - (column + 1) * scale, scale, scale, colour);
  });
}

}  // namespace diffattn::analysis
