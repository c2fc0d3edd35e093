// SPDX-License-Identifier: Apache-2.0
#include "io/settings.h"

#include <gtest/gtest.h>

#include <random>

#include "diffattn/io/error.h"

namespace diffattn::io {
namespace {

std::string message(const std::string& text) {
  try {
    parse_settings(text, "run.toml");
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Settings, ReadsTablesStringsNumbersAndComments) {
  const auto settings = parse_settings(
      "task = \"lm\"   # what to do\r\n"
      "seed = 11\n"
      "\n"
      "  [model]\n"
      "attention = 'diff # llama'\n"
      "scale = -1.5e-3# close\n"
      "[train.inner]\n"
      "on = true\n"
      "a.b = \"q\\\"\\\\\\n\\t\\r\"",
      "run.toml");
  ASSERT_EQ(settings.size(), 6u);
  EXPECT_EQ(settings[0].key, "task");
  EXPECT_EQ(settings[0].value, "lm");
  EXPECT_TRUE(settings[0].is_string);
  EXPECT_EQ(settings[1].value, "11");
  EXPECT_FALSE(settings[1].is_string);
  EXPECT_EQ(settings[1].line, 2u);
  EXPECT_EQ(settings[2].key, "model.attention");
  EXPECT_EQ(settings[2].value, "diff # llama");
  EXPECT_TRUE(settings[2].is_string);
  EXPECT_EQ(settings[3].value, "-1.5e-3");
  EXPECT_EQ(settings[4].key, "train.inner.on");
  EXPECT_EQ(settings[5].key, "train.inner.a.b");
  EXPECT_EQ(settings[5].value, "q\"\\\n\t\r");
  EXPECT_TRUE(parse_settings("", "empty").empty());
  EXPECT_EQ(parse_settings("\xef\xbb\xbfkey = 1", "marked").at(0).key, "key");
}

TEST(Settings, RefusesTheRestWithLineAndOffset) {
  EXPECT_EQ(message("a = 1\nb 2\n"), "run.toml: byte 8: line 2: expected '=', got '2'");
  EXPECT_EQ(message("a = 1\na = 2\n"), "run.toml: byte 6: line 2: key 'a' a second time");
  EXPECT_EQ(message("[t]\n[t]\n"), "run.toml: byte 5: line 2: table 't' a second time");
  EXPECT_EQ(message("a = [1, 2]\n"),
            "run.toml: byte 4: line 1: a: expected a string in quotes, a number, true or false, "
            "got '[1, 2]'");
  EXPECT_NE(message("a = \"x\n").find("before the end of the line"), std::string::npos);
  EXPECT_NE(message("a = \"\\x\"").find("one of"), std::string::npos);
  EXPECT_NE(message("a = 'x").find("single quote"), std::string::npos);
  EXPECT_NE(message("a = 1 2\n").find("the end of the line"), std::string::npos);
  EXPECT_NE(message("= 1\n").find("a key, a [table]"), std::string::npos);
  EXPECT_NE(message("[t\n").find("']'"), std::string::npos);
  EXPECT_NE(message("a =\n").find("true or false, got nothing"), std::string::npos);
  EXPECT_NE(message(std::string("a = 1\0", 6)).find("got '1\\x00'"), std::string::npos);
}

TEST(Settings, WordsNeedQuotesAndNumbersAreTomls) {
  EXPECT_EQ(message("[data]\ntrain = corpus/a.txt  # here\n"),
            "run.toml: byte 15: line 2: data.train: expected a string in quotes, a number, true or "
            "false, got 'corpus/a.txt'");
  for (const char* number : {"0", "-0", "+7", "1_000", "0.5", "-1.5e-3", "1e+08", "6E4", "true"}) {
    EXPECT_EQ(parse_settings("a = " + std::string(number), "x").at(0).value, number);
  }
  for (const char* word : {"lm", "True", "nan", "inf", "007", "1__0", "_1", "1_", ".5", "5.", "1e",
                           "0x10", "--1", "1.2.3", "2024-01-01", "1,5"}) {
    EXPECT_NE(message("a = " + std::string(word)).find("a: expected a string in quotes"),
              std::string::npos)
        << word;
  }
}

TEST(Settings, TakesAnyBytesWithoutHarm) {
  std::mt19937_64 random(7);
  const std::string letters = "ab.=[]\"'\\#\n\r \t1e-_";
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (std::uint64_t n = random() % 40; n > 0; --n) {
      text += random() % 16 == 0 ? static_cast<char>(random()) : letters[random() % letters.size()];
    }
    try {
      for (const Setting& setting : parse_settings(text, "x")) EXPECT_FALSE(setting.key.empty());
    } catch (const Error& error) {
      ASSERT_TRUE(error.offset());
      EXPECT_LE(*error.offset(), text.size());
    }
  }
}

}  // namespace
}  // namespace diffattn::io
