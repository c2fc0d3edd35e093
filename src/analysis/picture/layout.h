// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "analysis/picture/colour.h"
#include "analysis/report/grid.h"

namespace diffattn::analysis {

/// A picture with its cells coloured and everything placed, in pixels; PNG and SVG only draw it.
struct PlacedPicture {
  struct Cells {
    std::string title;
    int64_t x = 0;
    int64_t y = 0;
    int64_t title_y = 0;
    bool first = false;  // of its row: it has the row labels
    Grid grid;
  };
  struct Band {
    int64_t x = 0;  // from the panel's left side
    int64_t width = 0;
    Rgb colour;
  };
  int64_t width = 0;
  int64_t height = 0;
  int64_t cell = 1;        // pixels per cell
  int64_t factor = 1;      // entries per cell and axis
  int64_t text_scale = 1;  // of labels
  int64_t legend_x = 0;
  int64_t legend_y = 0;
  double range = 1;
  std::vector<Cells> panels;
  std::vector<std::string> row_labels;  // shortened; empty when cells are too small for them
  std::vector<std::string> column_labels;
  std::vector<Band> bands;             // of regions
  int64_t label_gap = 4;               // between the columns and their labels
  std::vector<int64_t> visible_begin;  // per row of cells; empty: all
  std::vector<int64_t> visible_end;
};

/// Checks the picture and places it. Throws std::invalid_argument.
PlacedPicture placed(const Picture& picture, const PictureStyle& style);

/// Throws std::invalid_argument unless sizes agree and numbers are finite.
void check(const Picture& picture, const PictureStyle& style);

/// The magnitude that 99.7 % of the entries that differ from zero stay below, 1 when there are
/// none; style.range where it is given.
double range_of(const Picture& picture, const PictureStyle& style);

/// Entries [begin, end) that rows of cells may see, at `factor` entries per cell. Empty for all.
void visible_cells(const Picture& picture, int64_t factor, std::vector<int64_t>& begin,
                   std::vector<int64_t>& end);

/// The colour of a cell.
Rgb cell_colour(const PlacedPicture& picture, const Grid& grid, int64_t row, int64_t column,
                const PictureStyle& style);

/// "0.25": for the legend.
std::string number_text(double value);

/// Height of a region's band, and its distance from the columns.
constexpr int64_t kBandHeight = 4;
constexpr int64_t kBandGap = 3;
constexpr int64_t kMargin = 16;
constexpr int64_t kLegendWidth = 2 * kScaleSteps + 1;
constexpr int64_t kLegendHeight = 12;

}  // namespace diffattn::analysis
