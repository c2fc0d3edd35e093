// SPDX-License-Identifier: Apache-2.0
#include "analysis/picture/layout.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "analysis/picture/raster.h"
#include "analysis/report/check.h"
#include "analysis/report/text.h"
#include "io/unicode/utf8.h"

namespace diffattn::analysis {
namespace {

constexpr size_t kMaxLabel = 12;
constexpr int64_t kTitleScale = 2;
constexpr int64_t kMaxPanelPixels = 8192;
// Share of the non-zero entries that the scale fits, as in the viewer. A few large entries, such as
// an attention sink, must not make all others pale.
constexpr double kFittingShare = 0.997;
constexpr size_t kMaxRangeEntries = size_t{1} << 20;

std::vector<std::string> shortened(const std::vector<std::string>& labels) {
  std::vector<std::string> out;
  for (const std::string& label : labels) {
    std::u32string points = code_points(label);
    if (points.size() > kMaxLabel) points.resize(kMaxLabel);
    std::string text;
    for (const char32_t point : points) io::unicode::append_utf8(point, text);
    out.push_back(std::move(text));
  }
  return out;
}

int64_t longest(const std::vector<std::string>& labels) {
  size_t most = 0;
  for (const std::string& label : labels) most = std::max(most, code_points(label).size());
  return static_cast<int64_t>(most);
}

}  // namespace

void check(const Picture& picture, const PictureStyle& style) {
  const std::string sizes = std::to_string(picture.rows) + " x " + std::to_string(picture.columns);
  if (picture.rows < 1 || picture.columns < 1) refuse("picture", "at least 1 x 1 entries", sizes);
  if (picture.panels.empty()) refuse("panels", "at least one", "none");
  if (style.panel_pixels < 16 || style.panel_pixels > kMaxPanelPixels) {
    refuse("panel_pixels", "16 to 8192", std::to_string(style.panel_pixels));
  }
  if (!(style.range >= 0) || !std::isfinite(style.range)) {
    refuse("range", "a finite number of at least 0", std::to_string(style.range));
  }
  const auto size_is = [](const std::string& what, size_t size, int64_t expected) {
    if (static_cast<int64_t>(size) == expected) return;
    refuse(what, std::to_string(expected) + " entries", std::to_string(size));
  };
  for (size_t i = 0; i < picture.panels.size(); ++i) {
    const std::string name = "panels[" + std::to_string(i) + "].values";
    const std::vector<float>& values = picture.panels[i].values;
    size_is(name, values.size(), picture.rows * picture.columns);
    for (const float value : values) {
      if (!std::isfinite(value)) refuse(name, "finite numbers", std::to_string(value));
    }
  }
  if (!picture.row_labels.empty()) size_is("row_labels", picture.row_labels.size(), picture.rows);
  if (!picture.column_labels.empty()) {
    size_is("column_labels", picture.column_labels.size(), picture.columns);
  }
  for (const Region& region : picture.regions) {
    if (region.begin >= 0 && region.begin <= region.end && region.end <= picture.columns) continue;
    refuse("regions", "ranges of " + std::to_string(picture.columns) + " columns",
           std::to_string(region.begin) + " to " + std::to_string(region.end));
  }
  check_visible("picture", picture.visible_begin, picture.visible_end, picture.rows,
                picture.columns);
}

double range_of(const Picture& picture, const PictureStyle& style) {
  if (style.range > 0) return style.range;
  const size_t entries = picture.panels.size() * picture.panels.front().values.size();
  const size_t step = std::max<size_t>(1, entries / kMaxRangeEntries);
  std::vector<float> magnitudes;
  for (const PicturePanel& panel : picture.panels) {
    for (size_t i = 0; i < panel.values.size(); i += step) {
      if (panel.values[i] != 0) magnitudes.push_back(std::fabs(panel.values[i]));
    }
  }
  if (magnitudes.empty()) return 1;
  const double place = std::ceil(kFittingShare * static_cast<double>(magnitudes.size() - 1));
  const auto fitting = magnitudes.begin() + static_cast<ptrdiff_t>(place);
  std::nth_element(magnitudes.begin(), fitting, magnitudes.end());
  return *fitting;
}

void visible_cells(const Picture& picture, int64_t factor, std::vector<int64_t>& begin,
                   std::vector<int64_t>& end) {
  if (picture.visible_begin.empty()) return;
  const auto cells = static_cast<size_t>((picture.rows + factor - 1) / factor);
  begin.assign(cells, picture.columns);
  end.assign(cells, 0);
  for (size_t row = 0; row < picture.visible_begin.size(); ++row) {
    if (picture.visible_begin[row] >= picture.visible_end[row]) continue;
    const size_t cell = row / static_cast<size_t>(factor);
    begin[cell] = std::min(begin[cell], picture.visible_begin[row] / factor);
    end[cell] = std::max(end[cell], (picture.visible_end[row] - 1) / factor + 1);
  }
}

PlacedPicture placed(const Picture& picture, const PictureStyle& style) {
  check(picture, style);
  PlacedPicture out;
  const int64_t side = std::max(picture.rows, picture.columns);
  out.factor = (side + style.panel_pixels - 1) / style.panel_pixels;
  const int64_t cells = (side + out.factor - 1) / out.factor;
  out.cell = std::max<int64_t>(1, style.panel_pixels / cells);
  out.text_scale = out.cell >= 2 * kGlyphHeight ? 2 : 1;
  out.range = range_of(picture, style);
  visible_cells(picture, out.factor, out.visible_begin, out.visible_end);
  if (out.factor == 1 && out.cell >= kGlyphHeight) {
    out.row_labels = shortened(picture.row_labels);
    out.column_labels = shortened(picture.column_labels);
  }

  for (const Region& region : picture.regions) {
    const int64_t begin = region.begin * out.cell / out.factor;
    const int64_t end = region.end * out.cell / out.factor;
    out.bands.push_back(
        {begin, std::max<int64_t>(1, end - begin), region_colour(style.theme, region.kind)});
  }
  if (!out.bands.empty()) out.label_gap += kBandHeight + kBandGap;

  const int64_t label_step = kGlyphWidth * out.text_scale;
  const int64_t gutter = longest(out.row_labels) * label_step + (out.row_labels.empty() ? 0 : 6);
  const int64_t head = longest(out.column_labels) * label_step + out.label_gap + 2;
  const int64_t title_height = picture.title.empty() ? 0 : kGlyphHeight * kTitleScale + 12;
  const int64_t left = kMargin + gutter;
  const int64_t above =
      kGlyphHeight * kTitleScale + 6 + head;  // space for a panel's title and labels
  int64_t x = left, right = left;
  int64_t title_y = kMargin + title_height, bottom = 0;
  for (const PicturePanel& panel : picture.panels) {
    const bool first = panel.starts_row || out.panels.empty();
    if (first && !out.panels.empty()) {
      x = left;
      title_y = bottom + kMargin;
    }
    Grid grid = keep_extremes(panel.values, picture.rows, picture.columns, out.factor);
    const int64_t wide = grid.columns * out.cell;
    bottom = title_y + above + grid.rows * out.cell;
    out.panels.push_back({panel.title, x, title_y + above, title_y, first, std::move(grid)});
    // A title may be wider than its panel.
    const auto characters = static_cast<int64_t>(code_points(panel.title).size());
    x += std::max(wide, characters * kGlyphWidth * kTitleScale) + kMargin;
    right = std::max(right, x);
  }
  const int64_t title_width =
      static_cast<int64_t>(code_points(picture.title).size()) * kGlyphWidth * kTitleScale;
  out.legend_x = left;
  out.legend_y = bottom + kMargin;
  out.width =
      std::max({right, kMargin * 2 + title_width, out.legend_x + kLegendWidth + 5 * kMargin});
  out.height = out.legend_y + kLegendHeight + 2 * kGlyphHeight + kMargin;
  return out;
}

Rgb cell_colour(const PlacedPicture& picture, const Grid& grid, int64_t row, int64_t column,
                const PictureStyle& style) {
  if (!picture.visible_begin.empty()) {
    const auto at = static_cast<size_t>(row);
    if (column < picture.visible_begin[at] || column >= picture.visible_end[at]) {
      return page_colours(style.theme).not_visible;
    }
  }
  return scale_colour(style.theme, scale_step(grid.at(row, column), picture.range, style.root));
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

}  // namespace diffattn::analysis
