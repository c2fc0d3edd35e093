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

TEST(Settings, ReadsTheRestOfTomlThatSettingsNeed) {
  const auto settings = parse_settings(
      "b.second = \"\"\"two\nlines\"\"\"\n"
      "a = 0xff\n"
      "[t]\n"
      "\"quoted\" = \"\\u00e9\"\n"
      "[b.third]\n"
      "on = false\n",
      "run.toml");
  ASSERT_EQ(settings.size(), 4u);
  EXPECT_EQ(settings[0].key, "b.second");
  EXPECT_EQ(settings[0].value, "two\nlines");
  EXPECT_EQ(settings[1].key, "a");
  EXPECT_EQ(settings[1].value, "255");
  EXPECT_EQ(settings[1].line, 3u);
  EXPECT_EQ(settings[2].key, "t.quoted");
  EXPECT_EQ(settings[2].value, "\xc3\xa9");
  EXPECT_EQ(settings[3].key, "b.third.on");
  EXPECT_EQ(settings[3].line, 7u);
}

TEST(Settings, ErrorsNameLineAndByte) {
  EXPECT_EQ(message("a = 1\nb 2\n"), "run.toml: byte 8: line 2: expected '=', got '2'");
  EXPECT_EQ(message("a = 1\na = 2\n"),
            "run.toml: byte 10: line 2: cannot redefine existing integer 'a'");
  EXPECT_EQ(message("[t]\n[t]\n"), "run.toml: byte 4: line 2: cannot redefine existing table 't'");
  EXPECT_EQ(message("x = 'é' # é\n\"é\" = 1\n"),
            "run.toml: byte 14: line 2: expected a key of letters, digits, '_' and '-', got "
            "'\\xc3\\xa9'");
  EXPECT_NE(message("\"\" = 1\n").find("got ''"), std::string::npos);
  EXPECT_NE(message("= 1\n").find("expected keys, tables"), std::string::npos);
  EXPECT_NE(message("[t\n").find("expected ']'"), std::string::npos);
  EXPECT_NE(message("a = 1 # \x01").find("byte 8: line 1: control characters"), std::string::npos);
  EXPECT_EQ(message("a = 1 # é\nb é\n"), "run.toml: byte 13: line 2: expected '=', got '?'");
}

TEST(Settings, ErrorsInValuesNameTheKey) {
  EXPECT_EQ(message("[t]\na = \"x\n"),
            "run.toml: byte 10: line 2: t.a: expected a closing quote before the end of the line");
  EXPECT_EQ(message("a = 'x"),
            "run.toml: byte 6: line 1: a: expected a closing quote before the end of the line");
  EXPECT_NE(message("a = \"\\x\"").find("line 1: a: escape sequence '\\x'"), std::string::npos);
  EXPECT_EQ(message("[t]\na.b = 99999999999999999999"),
            "run.toml: byte 10: line 2: t.a.b: '99999999999999999999' is not representable in 64 "
            "bits");
  const std::string expected = ": expected a string in quotes, a number, true or false, got ";
  EXPECT_EQ(message("a = [1, 2]\n"), "run.toml: byte 4: line 1: a" + expected + "'[1, 2]'");
  EXPECT_EQ(message("a = [\n1]\n"), "run.toml: byte 4: line 1: a" + expected + "'['");
  EXPECT_EQ(message("[t]\na = {b = 1} # c\n"),
            "run.toml: byte 8: line 2: t.a" + expected + "'{b = 1}'");
  EXPECT_EQ(message("a = 2024-01-01\n"), "run.toml: byte 4: line 1: a" + expected + "'2024-01-01'");
  EXPECT_NE(message("[[t]]\na = 1\n").find("line 1: t" + expected), std::string::npos);
  EXPECT_EQ(message("a = 1 2\n"), "run.toml: byte 4: line 1: a" + expected + "'1 2'");
  EXPECT_EQ(message("a =\n"), "run.toml: byte 3: line 1: a" + expected + "nothing");
  EXPECT_NE(message(std::string("a = 1\0", 6)).find("got '1\\x00'"), std::string::npos);
  EXPECT_EQ(message("[data]\ntrain = corpus/a.txt  # here\n"),
            "run.toml: byte 15: line 2: data.train" + expected + "'corpus/a.txt'");
  for (const char* word : {"lm", "True", "007", "1__0", "_1", "1_", ".5", "5.", "1e", "--1",
                           "1.2.3", "1,5", "1e400"}) {
    EXPECT_NE(message("a = " + std::string(word)).find("a" + expected), std::string::npos) << word;
  }
}

TEST(Settings, StringsMayHoldAnyBytesFrom0x80On) {
  std::string bytes = "é";
  for (int byte = 0x80; byte < 0x100; ++byte) bytes += static_cast<char>(byte);
  for (const char* quote : {"'", "\""}) {
    const auto settings = parse_settings("# " + bytes + "\na = " + quote + bytes + quote, "x");
    EXPECT_EQ(settings.at(0).value, bytes);
    EXPECT_EQ(settings.at(0).line, 2u);
  }
}

TEST(Settings, NumbersStayAsWritten) {
  for (const char* number : {"0", "-0", "+7", "1_000", "0.5", "-1.5e-3", "1e+08", "6E4", "1e-400",
                             "inf", "nan", "true"}) {
    EXPECT_EQ(parse_settings("a = " + std::string(number) + "# c", "x").at(0).value, number);
  }
}

TEST(Settings, DeepNestingIsAnError) {
  const auto repeated = [](const std::string& text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  };
  constexpr int kDeep = 200'000;
  EXPECT_NE(message(repeated("a.", kDeep) + "b = 1").find("256 dots"), std::string::npos);
  EXPECT_NE(message("x = 1\n[" + repeated("a.", kDeep) + "b]").find("line 2: "), std::string::npos);
  EXPECT_NE(message("a = " + repeated("[", kDeep)).find("a: expected a string"), std::string::npos);
  EXPECT_NE(message("a = " + repeated("{a = ", kDeep)).find("a: expected a string"),
            std::string::npos);
  EXPECT_EQ(parse_settings("p = \"" + repeated("../", 500) + "\" # " + repeated(".", 500), "x")
                .at(0)
                .value.size(),
            1500u);
}

TEST(Settings, ALineMayHave256Dots) {
  std::string dots;
  for (int i = 0; i < 256; ++i) dots += "a.";
  EXPECT_EQ(parse_settings("a = 1 # " + dots, "x").size(), 1u);
  EXPECT_EQ(message("a = 1 # " + dots + "a."),
            "run.toml: byte 521: line 1: expected at most 256 dots, got more");
}

TEST(Settings, ManyLinesTakeLinearTime) {
  std::string text;
  for (int i = 0; i < 60'000; ++i)
    text += "k" + std::to_string(i) + " = " + std::to_string(i) + "\n";
  const auto settings = parse_settings(text, "x");
  ASSERT_EQ(settings.size(), 60'000u);
  EXPECT_EQ(settings.back().value, "59999");
  EXPECT_EQ(settings.back().line, 60'000u);
}

TEST(Settings, TakesAnyBytesWithoutHarm) {
  std::mt19937_64 random(7);
  const std::string letters = "ab.,=[]{}\"'\\#\n\r \t1e-_:\xc3\xa9";
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (uint64_t n = random() % 40; n > 0; --n) {
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
