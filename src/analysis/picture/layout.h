// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "analysis/picture/colour.h"
#include "analysis/report/grid.h"

namespace diffattn::analysis {

/// The layout of a picture in pixels, which the PNG and SVG writers share.
struct PlacedPicture {
  struct Cells {
    std::string title;
    int64_t x = 0;
    int64_t y = 0;
    int64_t title_y = 0;
    bool first = false;  // true for the first panel of a row, which has the row labels
    Grid grid;
  };
  struct Band {
    int64_t x = 0;  // distance from the left side of the panel
    int64_t width = 0;
    Rgb colour;
  };
  int64_t width = 0;
  int64_t height = 0;
  int64_t cell = 1;        // pixels per cell
  int64_t factor = 1;      // a cell shows factor x factor entries
  int64_t text_scale = 1;  // scale of the labels
  int64_t legend_x = 0;
  int64_t legend_y = 0;
  double range = 1;
  std::vector<Cells> panels;
  std::vector<std::string> row_labels;  // shortened; empty if the cells are too small
  std::vector<std::string> column_labels;
  std::vector<Band> bands;             // marks of the regions
  int64_t label_gap = 4;               // space between the columns and their labels
  std::vector<int64_t> visible_begin;  // first visible cell of each row of cells; empty: all
  std::vector<int64_t> visible_end;
};

/// Computes the layout of a picture. Throws as check() does.
PlacedPicture placed(const Picture& picture, const PictureStyle& style);

/// Throws diffattn::Error if sizes contradict each other or numbers are not finite.
void check(const Picture& picture, const PictureStyle& style);

/// Returns style.range if it is set. Otherwise returns a magnitude that 99.7 % of the non-zero
/// entries do not exceed, or 1 if all entries are zero.
double range_of(const Picture& picture, const PictureStyle& style);

/// Computes the cells [begin, end) that each row of cells may see, for cells of factor x factor
/// entries. Both are empty if all cells are visible.
void visible_cells(const Picture& picture, int64_t factor, std::vector<int64_t>& begin,
                   std::vector<int64_t>& end);

/// Returns the colour of a cell.
Rgb cell_colour(const PlacedPicture& picture, const Grid& grid, int64_t row, int64_t column,
                const PictureStyle& style);

/// Formats a number for the legend, e.g. "0.25".
std::string number_text(double value);

/// The height of a region's band, and its distance from the columns.
constexpr int64_t kBandHeight = 4;
constexpr int64_t kBandGap = 3;
constexpr int64_t kMargin = 16;
constexpr int64_t kLegendWidth = 2 * kScaleSteps + 1;
constexpr int64_t kLegendHeight = 12;

}  // namespace diffattn::analysis
