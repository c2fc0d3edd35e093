// SPDX-License-Identifier: Apache-2.0
#include "analysis/picture/colour.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace diffattn::analysis {
namespace {

constexpr size_t kStops = 6;
constexpr std::array<double, kStops> kAt = {0, 0.15, 0.35, 0.6, 0.8, 1};

constexpr Rgb rgb(uint32_t hex) {
  return {static_cast<uint8_t>(hex >> 16), static_cast<uint8_t>(hex >> 8),
          static_cast<uint8_t>(hex)};
}

struct Arms {
  std::array<Rgb, kStops> positive;
  std::array<Rgb, kStops> negative;
};

constexpr Arms kLight = {
    {rgb(0xf7f7f5), rgb(0xd3e3ee), rgb(0x92c0de), rgb(0x4a8fc3), rgb(0x2a6cb0), rgb(0x124787)},
    {rgb(0xf7f7f5), rgb(0xfbe3cc), rgb(0xf7b980), rgb(0xe7812f), rgb(0xcb5c0c), rgb(0x953a02)}};
constexpr Arms kDark = {
    {rgb(0x171a20), rgb(0x182b3f), rgb(0x1d4c73), rgb(0x3583ba), rgb(0x78b7e2), rgb(0xd6eeff)},
    {rgb(0x171a20), rgb(0x39240f), rgb(0x703e0e), rgb(0xbb691b), rgb(0xf0a24e), rgb(0xffe4ba)}};

// Rounds as the browser does: floor(x + 1/2).
uint8_t mixed(uint8_t low, uint8_t high, double share) {
  return static_cast<uint8_t>(std::floor(low + (high - low) * share + 0.5));
}

}  // namespace

PageColours page_colours(PictureStyle::Theme theme) {
  if (theme == PictureStyle::Theme::kLight) {
    return {rgb(0xffffff), rgb(0x1b1f24), rgb(0x59626d), rgb(0xc9cdd2), rgb(0xecedec)};
  }
  return {rgb(0x0f1115), rgb(0xe9ebee), rgb(0xa2abb6), rgb(0x3a414b), rgb(0x262a31)};
}

Rgb region_colour(PictureStyle::Theme theme, const std::string& kind) {
  const bool light = theme == PictureStyle::Theme::kLight;
  if (kind == "answer") return light ? rgb(0x0b7a53) : rgb(0x3fc795);
  if (kind == "noise") return light ? rgb(0x8b6bb1) : rgb(0xb79be0);
  return light ? rgb(0x7d8590) : rgb(0x99a2ad);
}

Rgb scale_colour(PictureStyle::Theme theme, int step) {
  const Arms& arms = theme == PictureStyle::Theme::kLight ? kLight : kDark;
  const auto& stops = step < 0 ? arms.negative : arms.positive;
  const double t = std::min(1.0, std::abs(step) / static_cast<double>(kScaleSteps));
  size_t i = 1;
  while (kAt[i] < t) ++i;
  const double share = (t - kAt[i - 1]) / (kAt[i] - kAt[i - 1]);
  return {mixed(stops[i - 1].r, stops[i].r, share), mixed(stops[i - 1].g, stops[i].g, share),
          mixed(stops[i - 1].b, stops[i].b, share)};
}

int scale_step(float value, double range, bool root) {
  double t = std::min(1.0, std::fabs(static_cast<double>(value)) / range);
  if (root) t = std::sqrt(t);
  const int step = static_cast<int>(std::floor(t * kScaleSteps + 0.5));
  return value < 0 ? -step : step;
}

}  // namespace diffattn::analysis
