// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diffattn/analysis/report.h"

namespace diffattn::analysis {

/// One signed map, row-major [rows, columns].
struct PicturePanel {
  std::string title;
  std::vector<float> values;
  bool starts_row = false;  // below those before it, not beside them
};

/// Maps on one zero-centred scale, side by side unless one starts a row.
struct Picture {
  std::string title;
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<PicturePanel> panels;
  std::vector<std::string> row_labels;     // [rows] or empty
  std::vector<std::string> column_labels;  // [columns] or empty
  /// Row m may see the columns [visible_begin[m], visible_end[m]); both empty: all of them.
  std::vector<int64_t> visible_begin;
  std::vector<int64_t> visible_end;
  std::vector<Region> regions;  // marked above the columns
};

struct PictureStyle {
  enum class Theme { kLight, kDark };
  Theme theme = Theme::kLight;
  double range = 0;            // the weight of the strongest colour; 0: one that fits nearly all
  bool root = false;           // colour by the signed square root, which lifts small weights
  int64_t panel_pixels = 480;  // longer side of a panel; maps with more entries are downsampled
};

/// How a terminal may be drawn on.
enum class TerminalColours { kNone, k256 };

/// A PNG file: title, panels, token labels where a cell has room for them, legend. The built-in
/// font has ASCII, a Greek lambda and a minus sign; other characters appear as boxes.
///
/// These functions throw std::invalid_argument for a picture whose sizes contradict each other.
/// Where several entries share a cell, the one of largest magnitude is shown.
std::string to_png(const Picture& picture, const PictureStyle& style = {});

/// The same as an SVG document: cells as rectangles up to 64 x 64 entries, as an image beyond.
std::string to_svg(const Picture& picture, const PictureStyle& style = {});

/// For a terminal of that many columns. kNone: `#` `+` `.` for positive and `=` `-` `,` for
/// negative weights, strong to weak.
std::string to_ascii(const Picture& picture, TerminalColours colours,
                     int64_t terminal_columns = 100, const PictureStyle& style = {});

}  // namespace diffattn::analysis
