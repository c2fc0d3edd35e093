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
  bool starts_row = false;  // true: below the previous panels, not beside them
};

/// Maps that share one zero-centred scale, side by side unless one starts a row.
struct Picture {
  std::string title;
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<PicturePanel> panels;
  std::vector<std::string> row_labels;     // [rows] or empty
  std::vector<std::string> column_labels;  // [columns] or empty
  /// Row m may see the columns [visible_begin[m], visible_end[m]). Both empty: all columns.
  std::vector<int64_t> visible_begin;
  std::vector<int64_t> visible_end;
  std::vector<Region> regions;  // marked above the columns
};

struct PictureStyle {
  enum class Theme { kLight, kDark };
  Theme theme = Theme::kLight;
  double range = 0;            // weight of the strongest colour; 0 fits 99.7 % of the weights
  bool root = false;           // colour by the signed square root, which shows small weights
  int64_t panel_pixels = 480;  // longer side of a panel; larger maps are downsampled
};

/// The colours that a terminal supports.
enum class TerminalColours { kNone, k256 };

/// Returns a PNG file with title, panels, legend and, if the cells are large enough, token labels.
/// The built-in font has ASCII, a Greek lambda, a minus sign and a middle dot; it shows other
/// characters as boxes.
///
/// These functions throw diffattn::Error for a picture whose sizes contradict each other. A
/// cell of a downsampled map shows the entry of largest magnitude.
std::string to_png(const Picture& picture, const PictureStyle& style = {});

/// Returns an SVG document. Maps of up to 64 x 64 entries are rectangles, larger ones are images.
std::string to_svg(const Picture& picture, const PictureStyle& style = {});

/// Returns text for a terminal with `terminal_columns` columns. Without colours, `# + .` are
/// positive weights and `= - ,` negative ones, from strong to weak.
std::string to_ascii(const Picture& picture, TerminalColours colours,
                     int64_t terminal_columns = 100, const PictureStyle& style = {});

}  // namespace diffattn::analysis
