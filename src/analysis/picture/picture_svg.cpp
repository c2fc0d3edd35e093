// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <span>

#include "analysis/picture/layout.h"
#include "analysis/picture/raster.h"
#include "analysis/report/base64.h"
#include "analysis/report/text.h"

namespace diffattn::analysis {
namespace {

constexpr int64_t kMaxRectangleSide = 64;

std::string hex(Rgb colour) {
  char text[8];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", colour.r, colour.g, colour.b);
  return text;
}

std::string attribute(const char* name, int64_t value) {
  return std::string(" ").append(name).append("=\"").append(std::to_string(value)).append("\"");
}

std::string rectangle(int64_t x, int64_t y, int64_t width, int64_t height, Rgb colour) {
  return "<rect" + attribute("x", x) + attribute("y", y) + attribute("width", width) +
         attribute("height", height) + " fill=\"" + hex(colour) + "\"/>\n";
}

// `placement` holds more attributes, such as an anchor or a rotation.
std::string text(int64_t x, int64_t y, int64_t size, Rgb colour, const std::string& placement,
                 const std::string& content) {
  return "<text" + attribute("x", x) + attribute("y", y) + attribute("font-size", size) +
         " fill=\"" + hex(colour) + "\"" + placement + ">" + markup_text(content) + "</text>\n";
}

// Draws equal neighbours in a row as one rectangle.
std::string rectangles(const PlacedPicture& picture, const PlacedPicture::Cells& panel,
                       const PictureStyle& style) {
  std::string out;
  for (int64_t row = 0; row < panel.grid.rows; ++row) {
    for (int64_t column = 0; column < panel.grid.columns;) {
      const Rgb colour = cell_colour(picture, panel.grid, row, column, style);
      int64_t end = column + 1;
      while (end < panel.grid.columns &&
             cell_colour(picture, panel.grid, row, end, style) == colour) {
        ++end;
      }
      out += rectangle(panel.x + column * picture.cell, panel.y + row * picture.cell,
                       (end - column) * picture.cell, picture.cell, colour);
      column = end;
    }
  }
  return out;
}

std::string image(const PlacedPicture& picture, const PlacedPicture::Cells& panel,
                  const PictureStyle& style) {
  Raster raster(panel.grid.columns, panel.grid.rows, {});
  for (int64_t row = 0; row < panel.grid.rows; ++row) {
    for (int64_t column = 0; column < panel.grid.columns; ++column) {
      raster.fill(column, row, 1, 1, cell_colour(picture, panel.grid, row, column, style));
    }
  }
  const std::string png = encode_png(raster);
  const std::span bytes(reinterpret_cast<const uint8_t*>(png.data()), png.size());
  return "<image" + attribute("x", panel.x) + attribute("y", panel.y) +
         attribute("width", panel.grid.columns * picture.cell) +
         attribute("height", panel.grid.rows * picture.cell) +
         " style=\"image-rendering:pixelated\" href=\"data:image/png;base64," + base64(bytes) +
         "\"/>\n";
}

std::string labels(const PlacedPicture& picture, const PlacedPicture::Cells& panel, bool rows,
                   Rgb colour) {
  std::string out;
  const int64_t size = 9 * picture.text_scale;
  const auto middle = [&](size_t i) {
    return static_cast<int64_t>(i) * picture.cell + picture.cell / 2;
  };
  for (size_t i = 0; i < picture.column_labels.size(); ++i) {
    const int64_t x = panel.x + middle(i) + size / 3;
    const int64_t y = panel.y - picture.label_gap - 1;
    const std::string turn =
        " transform=\"rotate(-90 " + std::to_string(x) + " " + std::to_string(y) + ")\"";
    out += text(x, y, size, colour, turn, picture.column_labels[i]);
  }
  for (size_t i = 0; rows && i < picture.row_labels.size(); ++i) {
    out += text(panel.x - 5, panel.y + middle(i) + size / 3, size, colour, " text-anchor=\"end\"",
                picture.row_labels[i]);
  }
  return out;
}

std::string legend(const PlacedPicture& picture, const PictureStyle& style) {
  std::string out;
  for (int step = -kScaleSteps; step <= kScaleSteps; ++step) {
    out += rectangle(picture.legend_x + step + kScaleSteps, picture.legend_y, 1, kLegendHeight,
                     scale_colour(style.theme, step));
  }
  const Rgb colour = page_colours(style.theme).quiet;
  const int64_t y = picture.legend_y + kLegendHeight + 13;
  const std::string middle = " text-anchor=\"middle\"";
  out +=
      text(picture.legend_x, y, 10, colour, middle, "\u2264 \u2212" + number_text(picture.range));
  out += text(picture.legend_x + kScaleSteps, y, 10, colour, middle, "0");
  out += text(picture.legend_x + kLegendWidth, y, 10, colour, middle,
              "\u2265 +" + number_text(picture.range));
  return out;
}

}  // namespace

std::string to_svg(const Picture& picture, const PictureStyle& style) {
  const PlacedPicture all = placed(picture, style);
  const PageColours colours = page_colours(style.theme);
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\"" + attribute("width", all.width) +
                    attribute("height", all.height) + " viewBox=\"0 0 " +
                    std::to_string(all.width) + " " + std::to_string(all.height) +
                    "\" font-family=\"monospace\" shape-rendering=\"crispEdges\">\n";
  out += rectangle(0, 0, all.width, all.height, colours.paper);
  const int64_t first = kMargin + 16;
  if (!picture.title.empty()) out += text(kMargin, first, 17, colours.ink, "", picture.title);
  for (const PlacedPicture::Cells& panel : all.panels) {
    const int64_t wide = panel.grid.columns * all.cell;
    const int64_t high = panel.grid.rows * all.cell;
    out += text(panel.x, panel.title_y + 16, 15, colours.ink, "", panel.title);
    out += rectangle(panel.x - 1, panel.y - 1, wide + 2, high + 2, colours.frame);
    for (const PlacedPicture::Band& band : all.bands) {
      out += rectangle(panel.x + band.x, panel.y - kBandGap - kBandHeight, band.width, kBandHeight,
                       band.colour);
    }
    const bool few = std::max(panel.grid.rows, panel.grid.columns) <= kMaxRectangleSide;
    out += few ? rectangles(all, panel, style) : image(all, panel, style);
    out += labels(all, panel, panel.first, colours.quiet);
  }
  return out + legend(all, style) + "</svg>\n";
}

}  // namespace diffattn::analysis
