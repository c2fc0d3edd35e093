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

/// Steps of the colour scale on each side of zero.
constexpr int kScaleSteps = 127;

/// The colours that are not part of the scale.
struct PageColours {
  Rgb paper;
  Rgb ink;
  Rgb quiet;
  Rgb frame;
  Rgb not_visible;
};

PageColours page_colours(PictureStyle::Theme theme);

/// Returns the colour of a region by its kind, as in the viewer.
Rgb region_colour(PictureStyle::Theme theme, const std::string& kind);

/// Returns a colour of the diverging scale: blue for positive and orange for negative steps in
/// [-127, 127]. Stops and rounding equal those of viewer/src/colour.js; a browser test compares
/// them.
Rgb scale_colour(PictureStyle::Theme theme, int step);

/// Returns the step of a value. Values beyond the range get the last step.
int scale_step(float value, double range, bool root);

}  // namespace diffattn::analysis
