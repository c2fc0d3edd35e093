// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/json.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/io/test_files.h"

namespace diffattn::io {
namespace {

using testing::error_of;
using testing::holds;
using testing::TempFolder;

TEST(Json, ReadsWhatTheStandardAllows) {
  const auto doc = parse_json(
      " {\"a\":[1,-2,3.5,1e3,true,false,null,\"x\\u00e9\\n\\ud83d\\ude00\"],\"b\":{}} \n",
      "t.json");
  EXPECT_EQ(doc["a"].size(), 8U);
  EXPECT_EQ(doc["a"][7], "x\xC3\xA9\n\xF0\x9F\x98\x80");
  EXPECT_TRUE(doc["b"].empty());
  EXPECT_EQ(parse_json("18446744073709551615", "t"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(parse_json("-9223372036854775808", "t"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(parse_json("\"top\"", "t"), "top");
  EXPECT_EQ(parse_json("1e-400", "t"), 0.0);
}

TEST(Json, RefusesWithOffset) {
  struct Case {
    std::string text;
    uint64_t offset;
    std::string fragment;
  };
  const std::string nul("{}\0x", 4);
  const Case cases[] = {
      {"", 0, "the end of the text"},
      {"   ", 3, "the end of the text"},
      {"x", 0, "got 'x'"},
      {"{", 1, "the end of the text"},
      {"{\"a\" 1}", 5, "got '1'"},
      {"{\"a\":1,}", 7, "got '}'"},
      {"[1,]", 3, "got ']'"},
      {"[1 2]", 3, "got '2'"},
      {"{a:1}", 1, "got 'a'"},
      {"{'a':1}", 1, "got '''"},
      {"{} {}", 3, "got '{'"},
      {"1 x", 2, "got 'x'"},
      {"{\"a\":1,\"a\":2}", 7, "a second 'a'"},
      {"{\"a\":1,\"\\u0061\":2}", 7, "a second 'a'"},
      {"{\"a\":{\"b\":1,\"c\":2,\"b\":3}}", 18, "a second 'b'"},
      {"{\"q\\\"\":1,\"q\\\"\":2}", 9, "a second 'q\"'"},
      {"NaN", 0, "got 'N'"},
      {"[Infinity]", 1, "got 'I'"},
      {"[-Infinity]", 2, "got 'I'"},
      {"[1e400]", 1, "within the range of double, got '1e400'"},
      {"[-1e400]", 1, "within the range of double, got '-1e400'"},
      {"[18446744073709551616]", 1, "64 bits, got '18446744073709551616'"},
      {"{\"n\":-9223372036854775809}", 5, "64 bits, got '-9223372036854775809'"},
      {"[01]", 2, "got '1'"},
      {"[+1]", 1, "got '+'"},
      {"[1.]", 3, "got ']'"},
      {"[.5]", 1, "got '.'"},
      {"[0x10]", 2, "got 'x'"},
      {"[1,/*c*/2]", 3, "got '/'"},
      {"\"\xFF\"", 1, "ill-formed UTF-8"},
      {"\"\xC0\x80\"", 1, "ill-formed UTF-8"},
      {"\"\xED\xA0\x80\"", 2, "ill-formed UTF-8"},
      {"\"\xF5\x80\x80\x80\"", 1, "ill-formed UTF-8"},
      {"\"\xE2\x82\"", 3, "ill-formed UTF-8"},
      {"\"\\ud800\"", 7, "surrogate"},
      {"\"\\udc00\"", 6, "surrogate"},
      {"\"\\x41\"", 2, "forbidden character after backslash"},
      {"\"\\u12g4\"", 5, "must be followed by 4 hex digits"},
      {"\"a\nb\"", 2, "control character"},
      {"\"abc", 4, "missing closing quote"},
      {nul, 2, "NUL byte"},
      {"\xEF\xBB\xBF{}", 0, "byte order mark"},
      {"tru", 3, "the end of the text"},
      {"[true", 5, "the end of the text"},
  };
  for (const Case& c : cases) {
    try {
      parse_json(c.text, "t.json");
      ADD_FAILURE() << "accepted " << c.text;
    } catch (const Error& error) {
      EXPECT_EQ(error.offset(), c.offset) << c.text << "\n" << error.what();
      EXPECT_TRUE(holds(error.what(), c.fragment)) << c.text << "\n" << error.what();
      EXPECT_TRUE(holds(error.what(), "t.json: byte ")) << error.what();
      EXPECT_TRUE(holds(error.what(), "expected ")) << error.what();
    }
  }
}

TEST(Json, LimitsDepthAndValues) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_NO_THROW(parse_json(nested(64), "t"));
  EXPECT_TRUE(holds(error_of([&] { parse_json(nested(65), "t"); }), "byte 64: expected nesting"));
  EXPECT_TRUE(holds(error_of([&] { parse_json(nested(1'000'000), "t"); }), "byte 64: "));
  JsonLimits shallow;
  shallow.max_depth = 1;
  EXPECT_NO_THROW(parse_json("{\"a\":1}", "t", shallow));
  EXPECT_THROW(parse_json("{\"a\":{}}", "t", shallow), Error);
  JsonLimits few;
  few.max_values = 4;
  EXPECT_NO_THROW(parse_json("[1,2,3]", "t", few));
  EXPECT_TRUE(holds(error_of([&] { parse_json("[1,2,3,4]", "t", few); }), "at most 4 values"));
}

TEST(Json, ManyKeysStayFast) {
  std::string text = "{";
  for (int i = 0; i < 100'000; ++i) text += "\"key" + std::to_string(i) + "\":0,";
  text.back() = '}';
  EXPECT_EQ(parse_json(text, "t").size(), 100'000U);
}

TEST(Json, ReadsFilesUpToALimit) {
  const TempFolder folder;
  const std::string path = folder.put("c.json", "{\"a\": 1}");
  EXPECT_EQ(read_json(path)["a"], 1);
  EXPECT_TRUE(holds(error_of([&] { read_json(path, 7); }), "expected at most 7 bytes, got 8"));
  EXPECT_TRUE(holds(error_of([&] { read_json(folder / "none.json"); }), "No such file"));
}

TEST(Json, LiteralsAreEscaped) {
  EXPECT_EQ(json_literal("a\"\\\n"), "\"a\\\"\\\\\\n\"");
  EXPECT_EQ(json_literal("\xC3\xA9"), "\"\xC3\xA9\"");
  EXPECT_FALSE(json_literal("\xFF"));
  EXPECT_FALSE(json_literal("a\xE2\x82"));
}

TEST(JsonValue, ReadsTypedValues) {
  const auto doc = parse_json(
      R"({"i":-3,"u":18446744073709551615,"d":0.5,"w":2,"b":true,"s":"text","n":null,"a":[1,[2]],)"
      R"("o":{"k":7}})",
      "c.json");
  const JsonValue root(doc, "c.json");
  EXPECT_EQ(root.at("i").to_int(-3, 3), -3);
  EXPECT_EQ(root.at("u").to_uint(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(root.at("d").to_double(0, 1), 0.5);
  EXPECT_EQ(root.at("d").to_double(0.5, 1), 0.5);
  EXPECT_EQ(root.at("d").to_double(0, 0.5), 0.5);
  EXPECT_EQ(root.at("w").to_double(0, 2), 2.0);
  EXPECT_TRUE(root.at("b").to_bool());
  EXPECT_EQ(root.at("s").to_string(), "text");
  EXPECT_EQ(root.at("a").at(1).at(0).to_int(), 2);
  EXPECT_EQ(root.at("a").at(1).at(0).path(), "a[1][0]");
  EXPECT_EQ(root.at("o").at("k").path(), "o.k");
  EXPECT_EQ(root.at("a").size(), 2U);
  EXPECT_EQ(root.at("o").keys(), std::vector<std::string>{"k"});
  EXPECT_FALSE(root.find("n"));
  EXPECT_FALSE(root.find("absent"));
  EXPECT_TRUE(root.find("i"));
  EXPECT_TRUE(root.at("n").is_null() && root.at("o").is_object() && root.at("a").is_array());
  EXPECT_TRUE(root.at("s").is_string() && root.at("i").is_number() && root.at("b").is_bool());
}

TEST(JsonValue, NamesFileKeyAndWhatCame) {
  const auto doc = parse_json(
      R"({"rope_parameters":{"rope_theta":"x"},"big":18446744073709551615,"f":3.0,"neg":-1,)"
      R"("list":[1],"long":"abcdef","esc\u001b":1})",
      "config.json");
  const JsonValue root(doc, "config.json");
  const JsonValue theta = root.at("rope_parameters").at("rope_theta");
  EXPECT_EQ(error_of([&] { theta.to_double(1, 1e9); }),
            "config.json: key 'rope_parameters.rope_theta': expected a number in [1, 1000000000], "
            "got string \"x\"");
  EXPECT_EQ(error_of([&] { root.at("big").to_int(0, 10); }),
            "config.json: key 'big': expected an integer in [0, 10], got number "
            "18446744073709551615");
  EXPECT_EQ(error_of([&] { root.at("f").to_int(0, 10); }),
            "config.json: key 'f': expected an integer in [0, 10], got number 3");
  EXPECT_TRUE(holds(error_of([&] { root.at("neg").to_uint(); }), "got number -1"));
  EXPECT_TRUE(holds(error_of([&] { root.at("neg").to_int(0, 5); }), "got number -1"));
  EXPECT_TRUE(holds(error_of([&] { root.at("neg").to_double(0, 5); }), "in [0, 5], got number -1"));
  EXPECT_TRUE(holds(error_of([&] { root.at("list").to_bool(); }), "got an array of length 1"));
  EXPECT_TRUE(holds(error_of([&] { root.at("list").at(1); }), "element 1"));
  EXPECT_TRUE(holds(error_of([&] { root.at("list").at("k"); }), "expected an object"));
  EXPECT_TRUE(holds(error_of([&] { root.at("neg").find("k"); }), "expected an object"));
  EXPECT_TRUE(holds(error_of([&] { root.at("neg").keys(); }), "expected an object"));
  EXPECT_TRUE(holds(error_of([&] { root.at("neg").size(); }), "expected an array or object"));
  EXPECT_TRUE(holds(error_of([&] { root.at("long").to_string(5); }), "at most 5 bytes"));
  EXPECT_TRUE(holds(error_of([&] { root.at("f").to_string(); }), "expected a string"));
  EXPECT_EQ(
      error_of([&] { root.at("rope_parameters").at("nope"); }),
      "config.json: key 'rope_parameters.nope': expected a value, got none: the key is missing");
  EXPECT_EQ(error_of([&] { root.to_bool(); }),
            "config.json: expected true or false, got an object");
  EXPECT_TRUE(holds(error_of([&] { root.at("esc\x1b").to_bool(); }), "key 'esc\\x1b'"));
}

TEST(Error, TextFromFilesIsMadeSafe) {
  EXPECT_EQ(in_quotes("ab"), "'ab'");
  EXPECT_EQ(in_quotes("a\x1b[2J\n", '"'), "\"a\\x1b[2J\\x0a\"");
  EXPECT_EQ(in_quotes(std::string(100, 'x')), "'" + std::string(64, 'x') + "...'");
  const Error error("model.safetensors", 24, "expected '{', got 'x'");
  EXPECT_STREQ(error.what(), "model.safetensors: byte 24: expected '{', got 'x'");
  EXPECT_EQ(error.file(), "model.safetensors");
  EXPECT_EQ(error.message(), "expected '{', got 'x'");
  EXPECT_FALSE(Error("f", "m").offset());
}

}  // namespace
}  // namespace diffattn::io
