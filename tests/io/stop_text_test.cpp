// SPDX-License-Identifier: Apache-2.0
#include "io/stop_text.h"

#include <gtest/gtest.h>

namespace diffattn::io {
namespace {

TEST(StopText, NothingFollowsAStopString) {
  StopText text({"", "END", "\n\n"});
  EXPECT_EQ(text.push("one E"), "one ");
  EXPECT_EQ(text.push("N two\n"), "EN two");
  EXPECT_FALSE(text.found());
  EXPECT_EQ(text.push("three EN"), "\nthree ");
  EXPECT_EQ(text.push("D four"), "");
  EXPECT_TRUE(text.found());
  EXPECT_EQ(text.push("five"), "");
  EXPECT_EQ(text.finish("six"), "");
  EXPECT_EQ(text.all(), "one EN two\nthree ");
}

TEST(StopText, TheFirstOfSeveralStopStringsEndsTheText) {
  StopText text({"c", "b"});
  EXPECT_EQ(text.finish("abc"), "a");
  EXPECT_TRUE(text.found());
}

TEST(StopText, TheEndShowsTheBeginningOfAStopString) {
  StopText text({"END"});
  EXPECT_EQ(text.push("one EN"), "one ");
  EXPECT_EQ(text.finish(""), "EN");
  EXPECT_FALSE(text.found());
  StopText none;
  EXPECT_EQ(none.push("END") + none.finish("END"), "ENDEND");
}

}  // namespace
}  // namespace diffattn::io
