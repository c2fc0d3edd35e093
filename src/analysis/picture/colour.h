// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "diffattn/analysis/picture.h"

namespace diffattn::analysis {

struct Rgb {
  uint8_t r = 0;
  uint8_t g = 0;
  uint8_t b = 0;

  bool operator==(const Rgb&) const = default;
};

/// Steps of the scale on either side of zero.
constexpr int kScaleSteps = 127;

/// What is not part of the scale.
struct PageColours {
  Rgb paper;
  Rgb ink;
  Rgb quiet;
  Rgb frame;
  Rgb not_visible;
};

PageColours page_colours(PictureStyle::Theme theme);

/// The mark of a region, by its kind; as in the page.
Rgb region_colour(PictureStyle::Theme theme, const std::string& kind);

/// The diverging scale, blue for positive and orange for negative steps in [-127, 127]. Stops and
/// rounding are those of viewer/src/colour.js; a test in the browser compares the two.
Rgb scale_colour(PictureStyle::Theme theme, int step);

/// The step of a value; beyond the range it is the last one.
int scale_step(float value, double range, bool root);

}  // namespace diffattn::analysis
