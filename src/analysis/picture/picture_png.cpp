// SPDX-License-Identifier: Apache-2.0
#include "analysis/picture/layout.h"
#include "analysis/picture/raster.h"
#include "analysis/report/text.h"

namespace diffattn::analysis {
namespace {

int64_t text_width(const std::string& text, int64_t scale) {
  return static_cast<int64_t>(code_points(text).size()) * kGlyphWidth * scale;
}

void draw_cells(Raster& raster, const PlacedPicture& picture, const PlacedPicture::Cells& panel,
                const PictureStyle& style) {
  const int64_t cell = picture.cell;
  const Rgb frame = page_colours(style.theme).frame;
  raster.fill(panel.x - 1, panel.y - 1, panel.grid.columns * cell + 2, panel.grid.rows * cell + 2,
              frame);
  for (const PlacedPicture::Band& band : picture.bands) {
    raster.fill(panel.x + band.x, panel.y - kBandGap - kBandHeight, band.width, kBandHeight,
                band.colour);
  }
  for (int64_t row = 0; row < panel.grid.rows; ++row) {
    for (int64_t column = 0; column < panel.grid.columns; ++column) {
      raster.fill(panel.x + column * cell, panel.y + row * cell, cell, cell,
                  cell_colour(picture, panel.grid, row, column, style));
    }
  }
}

void draw_labels(Raster& raster, const PlacedPicture& picture, const PlacedPicture::Cells& panel,
                 bool rows, Rgb colour) {
  const int64_t scale = picture.text_scale;
  const int64_t inset = (picture.cell - 7 * scale) / 2;
  for (size_t i = 0; i < picture.column_labels.size(); ++i) {
    raster.text_up(panel.x + static_cast<int64_t>(i) * picture.cell + inset,
                   panel.y - picture.label_gap, picture.column_labels[i], colour, scale);
  }
  for (size_t i = 0; rows && i < picture.row_labels.size(); ++i) {
    const std::string& label = picture.row_labels[i];
    raster.text(panel.x - 4 - text_width(label, scale),
                panel.y + static_cast<int64_t>(i) * picture.cell + inset, label, colour, scale);
  }
}

void draw_legend(Raster& raster, const PlacedPicture& picture, const PictureStyle& style) {
  const PageColours colours = page_colours(style.theme);
  const int64_t x = picture.legend_x;
  const int64_t y = picture.legend_y;
  raster.fill(x - 1, y - 1, kLegendWidth + 2, kLegendHeight + 2, colours.frame);
  for (int step = -kScaleSteps; step <= kScaleSteps; ++step) {
    raster.fill(x + step + kScaleSteps, y, 1, kLegendHeight, scale_colour(style.theme, step));
  }
  const int64_t text_y = y + kLegendHeight + 6;
  const std::string high = ">= +" + number_text(picture.range);
  raster.text(x, text_y, "<= -" + number_text(picture.range), colours.quiet);
  raster.text(x + kScaleSteps - 2, text_y, "0", colours.quiet);
  raster.text(x + kLegendWidth - text_width(high, 1), text_y, high, colours.quiet);
}

}  // namespace

std::string to_png(const Picture& picture, const PictureStyle& style) {
  const PlacedPicture all = placed(picture, style);
  const PageColours colours = page_colours(style.theme);
  Raster raster(all.width, all.height, colours.paper);
  raster.text(kMargin, kMargin, picture.title, colours.ink, 2);
  for (const PlacedPicture::Cells& panel : all.panels) {
    raster.text(panel.x, panel.title_y, panel.title, colours.ink, 2);
    draw_cells(raster, all, panel, style);
    draw_labels(raster, all, panel, panel.first, colours.quiet);
  }
  draw_legend(raster, all, style);
  return encode_png(raster);
}

}  // namespace diffattn::analysis
