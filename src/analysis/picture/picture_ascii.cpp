// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "analysis/picture/layout.h"
#include "analysis/report/check.h"
#include "analysis/report/text.h"

namespace diffattn::analysis {
namespace {

constexpr int64_t kMinTerminal = 20;
constexpr size_t kLabelColumns = 12;
// Panels stand side by side only if each has at least this many cells in a row.
constexpr int64_t kMinCellsBeside = 24;

// Without colours, weaker steps are blank.
constexpr int kWeakest = 6;

// Returns the nearest of the 216 colours that are the same on every terminal with 256 colours.
int terminal_colour(Rgb colour) {
  const auto level = [](uint8_t value) {
    return value < 48 ? 0 : value < 115 ? 1 : (value - 35) / 40;
  };
  return 16 + 36 * level(colour.r) + 6 * level(colour.g) + level(colour.b);
}

std::string painted(const std::string& text, Rgb colour) {
  return "\x1b[48;5;" + std::to_string(terminal_colour(colour)) + "m" + text + "\x1b[0m";
}

// Replaces everything but printable ASCII: the bytes of a token could be control sequences.
std::string plain(const std::string& text, size_t length) {
  std::string out;
  for (const char32_t c : code_points(text)) {
    switch (c) {
      case U'\u03bb': out += "lambda"; break;
      case U'\u2212': out += '-'; break;
      case U'\u00b7': out += ' '; break;
      default: out += c >= 0x20 && c < 0x7f ? static_cast<char>(c) : '?';
    }
  }
  out.resize(std::min(out.size(), length));
  return out;
}

char sign_of(int step) {
  if (std::abs(step) < kWeakest) return ' ';
  const int strength = std::abs(step) * 3 / (kScaleSteps + 1);
  return step > 0 ? ".+#"[strength] : ",-="[strength];
}

class Terminal {
 public:
  Terminal(const Picture& picture, const PictureStyle& style, TerminalColours colours,
           int64_t columns)
      : picture_(picture), style_(style), colours_(colours), columns_(columns) {
    range_ = range_of(picture, style);
    const auto panels = static_cast<int64_t>(picture.panels.size());
    const int64_t room = columns_ - (picture.row_labels.empty() ? 0 : int64_t{kLabelColumns} + 1);
    const int64_t beside_cells = (room / panels - 2) / cell_columns();
    beside_ = panels > 1 && beside_cells >= std::min(picture.columns, kMinCellsBeside);
    const int64_t cells = std::max<int64_t>(1, beside_ ? beside_cells : room / cell_columns());
    factor_ = (picture.columns + cells - 1) / cells;
    visible_cells(picture, factor_, begin_, end_);
    for (const PicturePanel& panel : picture.panels) {
      grids_.push_back(keep_extremes(panel.values, picture.rows, picture.columns, factor_));
    }
  }

  std::string text() const {
    std::string out;
    if (!picture_.title.empty()) {
      out += plain(picture_.title, static_cast<size_t>(columns_)) + "\n";
    }
    if (beside_) {
      out += lines(0, grids_.size());
    } else {
      for (size_t i = 0; i < grids_.size(); ++i) out += lines(i, i + 1);
    }
    return out + legend();
  }

 private:
  int64_t cell_columns() const { return colours_ == TerminalColours::k256 ? 2 : 1; }

  std::string lines(size_t first, size_t last) const {
    const auto wide = static_cast<size_t>(grids_[first].columns * cell_columns());
    const size_t column = std::max(wide, title_columns(first, last));
    std::string out = margin(-1);
    for (size_t i = first; i < last; ++i) {
      std::string title = plain(picture_.panels[i].title, column);
      title.resize(column + 2, ' ');
      out += title;
    }
    out.erase(out.find_last_not_of(' ') + 1);
    out += "\n";
    for (int64_t row = 0; row < grids_[first].rows; ++row) {
      out += margin(row);
      for (size_t i = first; i < last; ++i) {
        for (int64_t place = 0; place < grids_[i].columns; ++place) {
          out += cell(grids_[i], row, place);
        }
        out.append(column - wide + 2, ' ');
      }
      while (out.back() == ' ') out.pop_back();
      out += "\n";
    }
    return out + "\n";
  }

  /// Returns the length of the longest title of these panels, at most the columns that the terminal
  /// has for each.
  size_t title_columns(size_t first, size_t last) const {
    size_t longest = 0;
    for (size_t i = first; i < last; ++i) {
      const std::string title = plain(picture_.panels[i].title, static_cast<size_t>(columns_));
      longest = std::max(longest, title.size());
    }
    const auto room = static_cast<size_t>(columns_) - margin(-1).size();
    return std::min(longest, room / std::max<size_t>(1, last - first) - 2);
  }

  std::string margin(int64_t row) const {
    if (picture_.row_labels.empty()) return "";
    std::string label;
    if (row >= 0 && factor_ == 1) {
      label = plain(picture_.row_labels[static_cast<size_t>(row)], kLabelColumns);
    }
    return std::string(kLabelColumns - label.size(), ' ') + label + " ";
  }

  std::string cell(const Grid& grid, int64_t row, int64_t column) const {
    const auto at = static_cast<size_t>(row);
    const bool hidden = !begin_.empty() && (column < begin_[at] || column >= end_[at]);
    std::string blank(static_cast<size_t>(cell_columns()), ' ');
    if (hidden) return blank;
    const int step = scale_step(grid.at(row, column), range_, style_.root);
    if (colours_ == TerminalColours::k256) return painted(blank, scale_colour(style_.theme, step));
    return std::string(1, sign_of(step));
  }

  std::string legend() const {
    const std::string range = number_text(range_);
    std::string out = "scale: <= -" + range + " ";
    if (colours_ == TerminalColours::k256) {
      for (int step = -kScaleSteps; step <= kScaleSteps; step += 18) {
        out += painted(" ", scale_colour(style_.theme, step));
      }
    } else {
      out += "= - , (blank: 0) . + #";
    }
    out += " >= +" + range;
    if (factor_ > 1) {
      const std::string side = std::to_string(factor_);
      out += "\neach cell: largest of " + side + " x " + side + " entries";
    }
    return out + "\n";
  }

  const Picture& picture_;
  const PictureStyle& style_;
  TerminalColours colours_;
  int64_t columns_;
  double range_ = 1;
  int64_t factor_ = 1;
  bool beside_ = false;
  std::vector<int64_t> begin_;
  std::vector<int64_t> end_;
  std::vector<Grid> grids_;
};

}  // namespace

std::string to_ascii(const Picture& picture, TerminalColours colours, int64_t terminal_columns,
                     const PictureStyle& style) {
  check(picture, style);
  if (terminal_columns < kMinTerminal) {
    refuse("terminal_columns", "at least 20", std::to_string(terminal_columns));
  }
  return Terminal(picture, style, colours, terminal_columns).text();
}

}  // namespace diffattn::analysis
