// SPDX-License-Identifier: Apache-2.0
#include "diffattn/analysis/picture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "analysis/picture/colour.h"
#include "analysis/report/grid.h"
#include "tests/analysis/page.h"

namespace diffattn::analysis::testing {
namespace {

// Returns a map of zeros with one negative entry.
Picture lone_negative(int64_t side) {
  Picture picture;
  picture.rows = picture.columns = side;
  picture.panels = {{"p", std::vector<float>(static_cast<size_t>(side * side), 0.0f)}};
  picture.panels[0].values[static_cast<size_t>(side * side - 2)] = -0.5f;
  return picture;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Grid, KeepsTheEntryOfLargestMagnitude) {
  const std::vector<float> values = {0.1f, -0.2f, 0.3f,   //
                                     0.0f, 0.1f,  -0.4f,  //
                                     0.5f, 0.0f,  0.0f};
  const Grid grid = keep_extremes(values, 3, 3, 2);
  EXPECT_EQ(grid.values, (std::vector<float>{-0.2f, -0.4f, 0.5f, 0.0f}));
}

TEST(Colours, AreZeroCentredAndClearlyApart) {
  for (const auto theme : {PictureStyle::Theme::kLight, PictureStyle::Theme::kDark}) {
    const Rgb zero = scale_colour(theme, 0);
    EXPECT_LE(std::abs(zero.r - zero.b), 12);  // grey
    for (const int step : {20, 60, 127}) {
      const Rgb positive = scale_colour(theme, step), negative = scale_colour(theme, -step);
      EXPECT_GT(positive.b, positive.r) << step;
      EXPECT_GT(negative.r, negative.b) << step;
    }
    EXPECT_EQ(scale_step(2.0f, 1.0, false), kScaleSteps);
    EXPECT_EQ(scale_step(-2.0f, 1.0, true), -kScaleSteps);
    EXPECT_EQ(scale_step(0.25f, 1.0, true), 64);
  }
}

TEST(Picture, MarksRegionsAboveTheColumns) {
  Picture picture = lone_negative(8);
  const std::string without = to_svg(picture);
  EXPECT_EQ(count(without, "#0b7a53"), 0u);
  picture.regions = {{"the answer", "answer", 2, 4}, {"noise", "noise", 4, 8}};
  const std::string with = to_svg(picture);
  EXPECT_EQ(count(with, "#0b7a53"), 1u);
  EXPECT_EQ(count(with, "#8b6bb1"), 1u);
  EXPECT_NE(to_png(picture), to_png(lone_negative(8)));
  picture.regions[0].end = 9;
  EXPECT_EQ(argument_error([&] { to_png(picture); }),
            "diffattn: regions: expected ranges of 8 columns, got 2 to 9");
}

TEST(Picture, PanelsInRows) {
  Picture picture = lone_negative(8);
  picture.panels.resize(4, picture.panels[0]);
  const auto size = [&](const char* name) {
    const std::string svg = to_svg(picture);
    return std::stol(svg.substr(svg.find(name) + std::strlen(name)));
  };
  const long wide = size(" width=\""), low = size(" height=\"");
  picture.panels[2].starts_row = true;
  EXPECT_LT(size(" width=\""), wide);
  EXPECT_GT(size(" height=\""), low + 400);
}

TEST(Picture, OneSinkDoesNotWashOutTheRest) {
  Picture picture = lone_negative(64);
  std::vector<float>& values = picture.panels[0].values;
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.01f;
  values[0] = 1.0f;
  EXPECT_NE(to_svg(picture).find("+0.01<"), std::string::npos);
  EXPECT_NE(to_svg(picture, {.range = 0.5}).find("+0.5<"), std::string::npos);
}

TEST(Picture, RefusesWhatContradictsItself) {
  Picture picture = lone_negative(4);
  picture.panels[0].values.pop_back();
  EXPECT_EQ(argument_error([&] { to_png(picture); }),
            "diffattn: panels[0].values: expected 16 entries, got 15");
  picture = lone_negative(4);
  picture.row_labels = {"a"};
  EXPECT_EQ(argument_error([&] { to_svg(picture); }),
            "diffattn: row_labels: expected 4 entries, got 1");
  picture = lone_negative(4);
  EXPECT_EQ(argument_error([&] { to_ascii(picture, TerminalColours::kNone, 3); }),
            "diffattn: terminal_columns: expected at least 20, got 3");
  picture.panels[0].values[0] = INFINITY;
  EXPECT_EQ(argument_error([&] { to_png(picture); }),
            "diffattn: panels[0].values: expected finite numbers, got inf");
  EXPECT_EQ(argument_error([&] { to_png(lone_negative(4), {.panel_pixels = 1}); }),
            "diffattn: panel_pixels: expected 16 to 8192, got 1");
}

TEST(Picture, OneTokenIsAPicture) {
  Picture picture;
  picture.rows = picture.columns = 1;
  picture.panels = {{"p", {0.0f}}};
  EXPECT_EQ(to_png(picture).substr(1, 3), "PNG");
  EXPECT_NE(to_svg(picture).find("</svg>"), std::string::npos);
  EXPECT_NE(to_ascii(picture, TerminalColours::kNone).find("scale"), std::string::npos);
}

TEST(Svg, EscapesTitlesAndLabels) {
  Picture picture = lone_negative(2);
  picture.title = "<script>alert(1)</script>";
  picture.row_labels = {"<b>",
                        "a&b\0c\x1b\xff\""
                        "x"};
  picture.row_labels[1] = std::string("a&b\0c\x1b\xff\"", 8);
  const std::string svg = to_svg(picture);
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_NE(svg.find("&lt;b&gt;"), std::string::npos);
  EXPECT_NE(svg.find("a&amp;b\xef\xbf\xbd"
                     "c\xef\xbf\xbd\xef\xbf\xbd&quot;"),
            std::string::npos);
}

TEST(Svg, CellsHaveTheColoursOfTheScale) {
  const std::string svg = to_svg(lone_negative(4), {.panel_pixels = 40});
  EXPECT_NE(svg.find("width=\"10\" height=\"10\" fill=\"#953a02\""), std::string::npos);
}

TEST(Ascii, KeepsALoneNegativeEntryOfAMillion) {
  const std::string text = to_ascii(lone_negative(1000), TerminalColours::kNone, 60);
  EXPECT_EQ(count(text.substr(0, text.find("scale")), "="), 1u) << text;
  EXPECT_NE(text.find("largest of 17 x 17 entries"), std::string::npos);
}

TEST(Ascii, NoByteOfATokenReachesTheTerminal) {
  Picture picture = lone_negative(2);
  picture.title = "\x1b]0;title\x07";
  picture.row_labels = {"\x1b[2J",
                        "\xc3\xa9\x9b"
                        "1m"};
  const std::string text = to_ascii(picture, TerminalColours::kNone);
  for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= 0x20 && c < 0x7f)) << int{c};
}

TEST(Ascii, NarrowMapsHaveWholeTitles) {
  Picture picture = lone_negative(3);
  picture.panels[0].title = "first title";
  picture.panels.push_back({"second title", picture.panels[0].values});
  picture.panels.push_back({"third title", picture.panels[0].values});
  const std::string text = to_ascii(picture, TerminalColours::kNone, 80);
  EXPECT_EQ(text.substr(0, text.find("scale")),
            "first title   second title  third title\n\n\n =             =             =\n\n");
}

TEST(Ascii, LinesFitTheTerminal) {
  Picture picture = lone_negative(300);
  picture.panels.push_back(picture.panels[0]);
  picture.panels.push_back(picture.panels[0]);
  const std::string text = to_ascii(picture, TerminalColours::kNone, 80);
  size_t from = 0;
  for (size_t end = text.find('\n'); end != std::string::npos;
       end = text.find('\n', from = end + 1)) {
    EXPECT_LE(end - from, 80u);
  }
}

}  // namespace
}  // namespace diffattn::analysis::testing
