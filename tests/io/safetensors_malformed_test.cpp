// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "tests/io/allocation_probe.h"
#include "tests/io/test_files.h"

namespace diffattn::io {
namespace {

using testing::AllocationProbe;
using testing::holds;
using testing::little_endian;
using testing::parse_file;
using testing::safetensors_file;
using testing::TempFolder;

struct Case {
  std::string label;
  std::string content;
  std::string fragment;  // expected part of the message
};

std::string raw(uint64_t length, std::string_view rest) {
  return little_endian(length).append(rest);
}

// Returns a file with one tensor "a" that has these fields.
std::string one(const std::string& fields, size_t data_bytes = 4) {
  return safetensors_file("{\"a\":{" + fields + "}}", data_bytes);
}
std::string with_dtype(const std::string& value) {
  return one("\"dtype\":" + value + R"(,"shape":[4],"data_offsets":[0,4])");
}
std::string with_shape(const std::string& value, const std::string& dtype = "U8") {
  return one("\"dtype\":\"" + dtype + "\",\"shape\":" + value + R"(,"data_offsets":[0,4])");
}
std::string with_offsets(const std::string& value) {
  return one(R"("dtype":"U8","shape":[4],"data_offsets":)" + value);
}
std::string named(const std::string& name) {
  return safetensors_file("{\"" + name + R"(":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                          4);
}
std::string entry(const std::string& name, int begin, int end) {
  return "\"" + name + R"(":{"dtype":"U8","shape":[)" + std::to_string(end - begin) +
         R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}
std::string two(const std::string& first, const std::string& second, size_t data_bytes) {
  return safetensors_file("{" + first + "," + second + "}", data_bytes);
}
std::string with_metadata(const std::string& value) {
  return safetensors_file("{\"__metadata__\":" + value + "}", 0);
}

const std::string kFields = R"("dtype":"U8","shape":[4],"data_offsets":[0,4])";
const std::string kGood = "{\"a\":{" + kFields + "}}";

std::vector<Case> length_cases() {
  const uint64_t n = kGood.size();
  std::string reversed = safetensors_file(kGood, 4);
  std::swap(reversed[0], reversed[7]);
  return {
      {"empty file", "", "got a file of 0 bytes"},
      {"one byte", "x", "got a file of 1 bytes"},
      {"seven bytes", std::string(7, '\0'), "got a file of 7 bytes"},
      {"length 0", raw(0, ""), "the end of the text"},
      {"length one past the file", raw(n + 1, kGood), "within the file's"},
      {"length over the limit", raw(100'000'001, kGood), "at most 100000000 bytes"},
      {"length 2^63", raw(1ULL << 63, kGood), "length of 9223372036854775808"},
      {"length 2^64 - 1", raw(~0ULL, kGood), "length of 18446744073709551615"},
      {"length that wraps with the 8", raw(~0ULL - 7, kGood), "length of 18446744073709551608"},
      {"length in the other byte order", reversed, "at most 100000000 bytes"},
      {"length one short", raw(n - 1, kGood), "the end of the text"},
      {"length that cuts a string", raw(4, kGood), "got the end of the text"},
      {"length that takes in a data byte", raw(n + 1, kGood + std::string(4, '\0')), "a NUL byte"},
      {"length that takes in text", raw(n + 1, kGood + "x"), "got 'x'"},
      {"pickle", std::string("\x80\x02}q\0(X\1\0\0\0a", 13), "at most 100000000 bytes"},
      {"zip archive", std::string("PK\3\4\0\0\0\0\0\0\0\0", 12), "within the file's"},
      {"JSON without a length", "{\"a\":{\"dtype\":\"U8\"}}", "at most 100000000 bytes"},
      {"GGUF", std::string("GGUF\3\0\0\0\0\0\0\0", 12), "length of 14"},
  };
}

std::vector<Case> json_cases() {
  const auto text = [](std::string_view header) { return safetensors_file(header, 4); };
  std::vector<Case> cases = {
      {"whitespace only", text("    "), "the end of the text"},
      {"array on top", text("[]"), "expected '{', got '['"},
      {"string on top", text("\"a\""), "expected '{', got '\"a\"'"},
      {"number on top", text("17 "), "expected '{', got '17'"},
      {"null on top", text("null"), "expected '{', got 'null'"},
      {"true on top", text("true"), "expected '{', got 'true'"},
      {"fraction on top", text("1.5 "), "expected '{', got '1.5'"},
      {"open object", text("{"), "the end of the text"},
      {"key without value", text("{\"a\"}"), "got '}'"},
      {"colon without value", text("{\"a\":}"), "got '}'"},
      {"trailing comma", text("{\"a\":{" + kFields + "},}"), "got '}'"},
      {"missing comma", text("{" + entry("a", 0, 2) + entry("b", 2, 4) + "}"), "got '\"'"},
      {"single quotes", text("{'a':{}}"), "got '''"},
      {"bare key", text("{a:{}}"), "got 'a'"},
      {"block comment", text("/**/" + kGood), "got '/'"},
      {"line comment", text("{//\n}"), "got '/'"},
      {"byte order mark", text("\xEF\xBB\xBF" + kGood), "byte order mark"},
      {"NUL in a name", named(std::string("a\0b", 3)), "NUL byte"},
      {"newline in a name", named("a\nb"), "control character"},
      {"unknown escape", named("\\x41"), "after backslash"},
      {"byte FF", named("\xFF"), "ill-formed UTF-8"},
      {"overlong UTF-8", named("\xC0\x80"), "ill-formed UTF-8"},
      {"surrogate as UTF-8", named("\xED\xA0\x80"), "ill-formed UTF-8"},
      {"cut UTF-8", named("\xE2\x82"), "ill-formed UTF-8"},
      {"beyond Unicode", named("\xF4\x90\x80\x80"), "ill-formed UTF-8"},
      {"lone high surrogate", named("\\ud800"), "surrogate"},
      {"lone low surrogate", named("\\udc00"), "surrogate"},
      {"bad hex digits", named("\\u12g4"), "4 hex digits"},
      {"two documents", text("{}{}"), "got '{'"},
      {"text after the document", text(kGood + " x"), "got 'x'"},
      {"brace too many", text(kGood + "}"), "got '}'"},
      {"mismatched bracket", text("{\"a\":{\"shape\":[4}}"), "got '}'"},
      {"open string", text("{\"a"), "missing closing quote"},
      {"misspelt literal", with_dtype("nul"), "got ','"},
  };
  return cases;
}

std::vector<Case> structure_cases() {
  const auto tensor = [](const std::string& value) {
    return safetensors_file("{\"a\":" + value + "}", 4);
  };
  const std::string describes = "expected an object that describes a tensor, got ";
  return {
      {"tensor is a string", tensor("\"U8\""), describes + "'\"U8\"'"},
      {"tensor is an array", tensor("[]"), describes + "'['"},
      {"tensor is a number", tensor("4"), describes + "'4'"},
      {"tensor is null", tensor("null"), describes + "'null'"},
      {"tensor is false", tensor("false"), describes + "'false'"},
      {"tensor without fields", tensor("{}"), "got no dtype"},
      {"no dtype", one(R"("shape":[4],"data_offsets":[0,4])"), "got no dtype"},
      {"no shape", one(R"("dtype":"U8","data_offsets":[0,4])"), "got no shape"},
      {"no data_offsets", one(R"("dtype":"U8","shape":[4])"), "got no data_offsets"},
      {"unknown field", one(kFields + ",\"strides\":[1]"), "got 'strides'"},
      {"second dtype", one(kFields + ",\"dtype\":\"U8\""), "a second 'dtype'"},
      {"second shape", one(kFields + ",\"shape\":[4]"), "a second 'shape'"},
      {"second data_offsets", one(kFields + ",\"data_offsets\":[0,4]"), "a second 'data_offsets'"},
      {"field in capitals", one("\"DTYPE\":\"U8\""), "got 'DTYPE'"},
      {"dtype is a number", with_dtype("8"), "the name of a dtype, got '8'"},
      {"dtype is null", with_dtype("null"), "the name of a dtype, got 'null'"},
      {"dtype is an array", with_dtype("[\"U8\"]"), "the name of a dtype, got '['"},
      {"dtype is an object", with_dtype("{}"), "the name of a dtype, got '{'"},
      {"dtype unknown", with_dtype("\"F128\""), "a dtype of the format, got 'F128'"},
      {"dtype in lower case", with_dtype("\"u8\""), "a dtype of the format, got 'u8'"},
      {"dtype empty", with_dtype("\"\""), "a dtype of the format, got ''"},
      {"dtype with a space", with_dtype("\"U8 \""), "a dtype of the format, got 'U8 '"},
      {"dtype very long", with_dtype("\"" + std::string(9999, 'F') + "\""), "FFF...'"},
      {"deep arrays", tensor(std::string(100'000, '[')), describes + "'['"},
      {"deep objects", tensor("{\"shape\":{\"a\":{\"b\":{\"c\":{}}}}}"), "an array of dimensions"},
      {"depth 5 in a shape", with_shape("[[[[[1]]]]]"), "at least 0, got '['"},
  };
}

std::vector<Case> shape_cases() {
  const std::string dims = "an array of dimensions, got ";
  const std::string integer = "expected an integer of at least 0, got ";
  return {
      {"shape is a number", with_shape("4"), dims + "'4'"},
      {"shape is a string", with_shape("\"4\""), dims + "'\"4\"'"},
      {"shape is an object", with_shape("{\"0\":4}"), dims + "'{'"},
      {"shape is null", with_shape("null"), dims + "'null'"},
      {"dimension negative", with_shape("[-4]"), integer + "'-4'"},
      {"dimension minus zero", with_shape("[-0]"), integer + "'-0'"},
      {"dimension 4.0", with_shape("[4.0]"), integer + "'4.0'"},
      {"dimension 4e0", with_shape("[4e0]"), integer + "'4e0'"},
      {"dimension text", with_shape("[\"4\"]"), integer + "'\"4\"'"},
      {"dimension null", with_shape("[4,null]"), integer + "'null'"},
      {"dimension true", with_shape("[true]"), integer + "'true'"},
      {"dimension object", with_shape("[{}]"), integer + "'{'"},
      {"dimension NaN", with_shape("[NaN]"), "got 'N'"},
      {"dimension Infinity", with_shape("[Infinity]"), "got 'I'"},
      {"dimension -Infinity", with_shape("[-Infinity]"), "got 'I'"},
      {"dimension 04", with_shape("[04]"), "got '4'"},
      {"dimension +4", with_shape("[+4]"), "got '+'"},
      {"dimension 0x4", with_shape("[0x4]"), "got 'x'"},
      {"dimension 4.", with_shape("[4.]"), "got ']'"},
      {"dimension 1e400", with_shape("[1e400]"), "range of double, got '1e400'"},
      {"dimension 2^63", with_shape("[9223372036854775808]"), "a dimension below 2^63"},
      {"dimension 2^64", with_shape("[18446744073709551616]"), "that fits in 64 bits"},
      {"dimension -2^63 - 1", with_shape("[-9223372036854775809]"), "that fits in 64 bits"},
      {"rank 9", with_shape("[4,1,1,1,1,1,1,1,1]"), "at most 8 dimensions"},
      {"elements overflow", with_shape("[4294967296,4294967296]"), "elements below 2^64"},
      {"bits overflow", with_shape("[4611686018427387904]", "F64"), "bits below 2^64"},
      {"bytes wrap to the offsets' size", with_shape("[4611686018427387905]", "F32"),
       "bits below 2^64"},
      {"empty with strides that overflow", with_shape("[0,4294967296,4294967296]"),
       "elements below 2^64"},
      {"half a byte", with_shape("[7]", "F4"), "whole number of bytes, got 28 bits of F4"},
      {"6 bits", with_shape("[1]", "F6_E3M2"), "whole number of bytes, got 6 bits of F6_E3M2"},
      {"scalar F4", with_shape("[]", "F4"), "whole number of bytes, got 4 bits"},
  };
}

std::vector<Case> offset_cases() {
  const std::string array = "an array of two data_offsets, got ";
  const std::string integer = "expected an integer of at least 0, got ";
  return {
      {"offsets are a number", with_offsets("4"), array + "'4'"},
      {"offsets are a string", with_offsets("\"0,4\""), array + "'\"0,4\"'"},
      {"offsets are an object", with_offsets("{}"), array + "'{'"},
      {"offsets are null", with_offsets("null"), array + "'null'"},
      {"no offsets", with_offsets("[]"), "two data_offsets, got 0"},
      {"one offset", with_offsets("[0]"), "two data_offsets, got 1"},
      {"three offsets", with_offsets("[0,4,8]"), "two data_offsets, got a third"},
      {"offset negative", with_offsets("[-4,0]"), integer + "'-4'"},
      {"offset 4.0", with_offsets("[0,4.0]"), integer + "'4.0'"},
      {"offset 4e0", with_offsets("[0,4e0]"), integer + "'4e0'"},
      {"offset text", with_offsets("[\"0\",4]"), integer + "'\"0\"'"},
      {"offset null", with_offsets("[null,4]"), integer + "'null'"},
      {"offset array", with_offsets("[[0],4]"), integer + "'['"},
      {"offset 2^64", with_offsets("[0,18446744073709551616]"), "that fits in 64 bits"},
      {"offsets reversed", with_offsets("[4,0]"), "data_offsets in order, got [4, 0]"},
      {"range too small", with_offsets("[0,3]"),
       "expected 4 bytes of U8 [4], got data_offsets for 3"},
      {"range too large", with_offsets("[0,5]"), "got data_offsets for 5"},
      {"range of 2^64 - 1", with_offsets("[0,18446744073709551615]"), "for 18446744073709551615"},
      {"range with an empty shape", with_shape("[0]"), "expected 0 bytes"},
      {"range of a scalar", with_shape("[]", "F64"), "expected 8 bytes of F64 [], got"},
      {"starts after 0", with_offsets("[1,5]"), "begin at 0"},
      {"starts near 2^64", with_offsets("[18446744073709551611,18446744073709551615]"),
       "begin at 0, where the data before it ends, got 18446744073709551611"},
      {"gap", two(entry("a", 0, 2), entry("b", 3, 4), 4),
       "tensor 'b': expected its data to begin at 2"},
      {"overlap", two(entry("a", 0, 3), entry("b", 2, 4), 4),
       "tensor 'b': expected its data to begin at 3"},
      {"same range twice", two(entry("a", 0, 4), entry("b", 0, 4), 4), "begin at 4"},
      {"one inside the other", two(entry("a", 0, 4), entry("b", 1, 2), 4), "begin at 4"},
      {"empty one in the middle of another", two(entry("a", 0, 4), entry("b", 2, 2), 4),
       "begin at 4"},
      {"past the end of the file", one(kFields, 3), "within the 3 bytes of data"},
      {"no data at all", one(kFields, 0), "within the 0 bytes of data"},
      {"second past the end", two(entry("a", 0, 4), entry("b", 4, 9), 8),
       "tensor 'b': expected its"},
      {"bytes after the data", one(kFields, 5), "fill the 5 bytes of data in the file, got 4"},
      {"data without tensors", safetensors_file("{}", 1),
       "fill the 1 bytes of data in the file, got 0"},
      {"data after empty tensors", safetensors_file("{" + entry("a", 0, 0) + "}", 1), "got 0"},
  };
}

std::vector<Case> name_cases() {
  return {
      {"name twice", two(entry("a", 0, 2), entry("a", 2, 4), 4),
       "tensor 'a': expected unique names"},
      {"name twice, once escaped", two(entry("a", 0, 2), entry("\\u0061", 2, 4), 4),
       "unique names"},
      {"name twice with equal ranges", two(entry("a", 0, 4), entry("a", 0, 4), 4), "unique names"},
      {"name empty", named(""), "1 to 1024 bytes, got one of 0"},
      {"name of 1025 bytes", named(std::string(1025, 'n')), "got one of 1025"},
      {"name with U+0001", named("a\\u0001"), "without control characters, got 'a\\x01'"},
      {"name with an escape sequence", named("\\u001b[2J"), "without control characters"},
      {"name with DEL", named("a\x7f"), "without control characters"},
      {"name with U+009B", named("a\xC2\x9B"), "without control characters"},
      {"name with an escaped NUL", named("a\\u0000b"), "without control characters"},
      {"metadata is a string", with_metadata("\"x\""),
       "expected an object of strings, got '\"x\"'"},
      {"metadata is null", with_metadata("null"), "expected an object of strings, got 'null'"},
      {"metadata is an array", with_metadata("[]"), "expected an object of strings, got '['"},
      {"metadata is a number", with_metadata("1"), "expected an object of strings, got '1'"},
      {"metadata with a number", with_metadata("{\"k\":1}"), "metadata key 'k', got '1'"},
      {"metadata with null", with_metadata("{\"k\":null}"), "metadata key 'k', got 'null'"},
      {"metadata with true", with_metadata("{\"k\":true}"), "metadata key 'k', got 'true'"},
      {"metadata with an object", with_metadata("{\"k\":{}}"), "metadata key 'k', got '{'"},
      {"metadata with an array", with_metadata("{\"k\":[]}"), "metadata key 'k', got '['"},
      {"metadata with a fraction", with_metadata("{\"k\":0.5}"), "metadata key 'k', got '0.5'"},
      {"metadata key twice", with_metadata("{\"k\":\"1\",\"k\":\"2\"}"), "unique metadata keys"},
      {"metadata twice", with_metadata("{},\"__metadata__\":{}"), "one __metadata__"},
  };
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (auto part : {length_cases(), json_cases(), structure_cases(), shape_cases(), offset_cases(),
                    name_cases()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// Parses each file from memory and from disk: both give the same message and allocate little.
TEST(SafetensorsMalformed, EveryFileIsRefusedForItsOwnReason) {
  const TempFolder folder;
  const std::vector<Case> cases = all_cases();
  std::set<std::string> labels, contents;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.label);
    EXPECT_TRUE(labels.insert(c.label).second);
    EXPECT_TRUE(contents.insert(c.content).second);
    AllocationProbe::reset();
    std::string message;
    try {
      parse_file(c.content);
      ADD_FAILURE() << "accepted";
      continue;
    } catch (const Error& error) {
      message = error.message();
      EXPECT_TRUE(holds(message, c.fragment)) << error.what();
      EXPECT_TRUE(holds(message, "expected ") && holds(message, "got ")) << error.what();
      EXPECT_EQ(error.file(), "model.safetensors");
      if (error.offset()) {
        EXPECT_LE(*error.offset(), c.content.size()) << error.what();
      }
      EXPECT_LE(message.size(), 400U);
    }
    const std::string path = folder.put("m.safetensors", c.content);
    try {
      SafetensorsReader::open(path);
      ADD_FAILURE() << "accepted from disk";
    } catch (const Error& error) {
      EXPECT_EQ(error.message(), message);
      EXPECT_EQ(error.file(), path);
    }
    EXPECT_LE(AllocationProbe::largest(), testing::allocation_bound(c.content.size()));
    EXPECT_LE(AllocationProbe::peak_live(), testing::allocation_bound(c.content.size()));
  }
  EXPECT_GE(cases.size(), 96U);
  RecordProperty("malformed_files", static_cast<int>(cases.size()));
}

TEST(SafetensorsMalformed, OffsetsPointAtTheCulprit) {
  const auto offset_of = [](const std::string& content) {
    try {
      parse_file(content);
    } catch (const Error& error) {
      return error.offset().value_or(0);
    }
    return uint64_t{0};
  };
  EXPECT_EQ(offset_of(safetensors_file("  [", 0)), 10U);
  EXPECT_EQ(offset_of(with_shape("[4.0]")),
            8 + std::string(R"({"a":{"dtype":"U8","shape":[)").size());
  EXPECT_EQ(offset_of(two(entry("a", 0, 2), entry("a", 2, 4), 4)),
            8 + 1 + entry("a", 0, 2).size() + 1);
  EXPECT_EQ(offset_of(one(kFields + ",\"x\":1")),
            8 + std::string("{\"a\":{,").size() + kFields.size());
}

}  // namespace
}  // namespace diffattn::io
