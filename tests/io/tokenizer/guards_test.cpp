// SPDX-License-Identifier: Apache-2.0
//
// Guards of the tokenizer whose removal no other test notices. Mutation testing (tools/mutation)
// found them.

#include <nlohmann/json.hpp>

#include "diffattn/io/tokenizer.h"
#include "tests/io/test_files.h"

namespace diffattn::io {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::holds;

json document(const json& changes) {
  json whole = {{"model", {{"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b"}}}}};
  whole.merge_patch(changes);
  return whole;
}

Tokenizer parsed(const json& changes) {
  return Tokenizer::parse(document(changes).dump(), "tokenizer.json");
}

void expect_refused(const json& changes, const std::string& fragment) {
  const std::string error = error_of([&] { parsed(changes); });
  EXPECT_TRUE(holds(error, fragment)) << error;
}

TEST(TokenizerGuards, AMergeCannotMakeAnAddedToken) {
  expect_refused({{"added_tokens", {{{"id", 9}, {"content", "hi"}}}},
                  {"model", {{"vocab", {{"h", 3}, {"i", 4}}}, {"merges", {"h i"}}}}},
                 "'hi', which is not in it");
}

TEST(TokenizerGuards, MergesOfTokensWithSpacesAreWrittenAsPairs) {
  const json merges = json::array({json::array({" ", "a"}), json::array({" a", "b"})});
  const json vocabulary = {{" a", 3}, {" ", 4}, {" ab", 5}};
  const Tokenizer tokenizer = parsed({{"model", {{"vocab", vocabulary}, {"merges", merges}}}});
  EXPECT_EQ(tokenizer.encode(" ab"), std::vector<TokenId>{5});
  const Tokenizer again = Tokenizer::parse(tokenizer.to_json(), "again");
  EXPECT_EQ(again.encode(" ab"), std::vector<TokenId>{5});
}

TEST(TokenizerGuards, ATemplateHasSequenceAOnce) {
  const json sequence = {{"Sequence", {{"id", "A"}}}};
  expect_refused({{"post_processor",
                   {{"type", "TemplateProcessing"},
                    {"single", {sequence, sequence}},
                    {"special_tokens", json::object()}}}},
                 "sequence A, once");
}

TEST(TokenizerGuards, StepsNameWhatTheyExpect) {
  expect_refused({{"normalizer", {{"type", "Replace"}, {"pattern", "x"}, {"content", "y"}}}},
                 "key 'normalizer.pattern': expected {\"String\": text}");
  expect_refused({{"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}}},
                 "expected one character");
  expect_refused({{"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", ""}}}},
                 "expected one character");
  expect_refused({{"pre_tokenizer",
                   {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "sometimes"}}}},
                 "always, first or never");
}

TEST(TokenizerGuards, RemovedWithInvertKeepsTheMatches) {
  const char* gpt2 =
      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
  const json split = {
      {"type", "Split"}, {"pattern", {{"Regex", gpt2}}}, {"behavior", "Removed"}, {"invert", true}};
  EXPECT_EQ(parsed({{"pre_tokenizer", split}}).encode("ab"), std::vector<TokenId>{2});
}

TEST(TokenizerGuards, OnlyASpecialTokenEndsAText) {
  const json ordinary = {{{"id", 3}, {"content", "</s>"}, {"special", false}}};
  const json special = {{{"id", 3}, {"content", "</s>"}, {"special", true}}};
  EXPECT_EQ(parsed({{"added_tokens", ordinary}}).end_of_text(), std::nullopt);
  EXPECT_EQ(parsed({{"added_tokens", special}}).end_of_text(), 3u);
  EXPECT_EQ(parsed(json::object()).end_of_text(), std::nullopt);
}

TEST(TokenizerGuards, WithoutADecoderSpacesSeparateTokens) {
  EXPECT_EQ(parsed(json::object()).decode(std::vector<TokenId>{0, 1}), "a b");
}

TEST(TokenizerGuards, OnlyByteTokensDecodeToBytes) {
  const json fallback = {{"type", "ByteFallback"}}, byte_level = {{"type", "ByteLevel"}};
  const json changes = {
      {"decoder", fallback},
      {"model", {{"vocab", {{"<0x41>", 3}, {"abc41>", 4}, {"<0x41)", 5}, {"<0x41>x", 6}}}}}};
  EXPECT_EQ(parsed(changes).decode(std::vector<TokenId>{3, 4, 5, 6}), "Aabc41><0x41)<0x41>x");
  expect_refused({{"decoder", {{"type", "Sequence"}, {"decoders", {fallback, byte_level}}}}},
                 "ByteLevel as the only step");
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "b"}};
  expect_refused({{"decoder", {{"type", "Sequence"}, {"decoders", {fallback, replace}}}}},
                 "Replace before ByteFallback and Fuse");
}

TEST(TokenizerGuards, StripTakesSpacesOnlyFromTheBeginning) {
  const auto stripping = [](const std::string& content) {
    const json strip = {{"type", "Strip"}, {"content", content}, {"start", 1}, {"stop", 0}};
    return json{{"decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}, strip}}}},
                {"model", {{"vocab", {{" b", 3}}}}}};
  };
  const Tokenizer tokenizer = parsed(stripping(" "));
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{0, 3}), "a b");
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{3, 3}), "b b");
  expect_refused(stripping(""), "expected one character");
  expect_refused(stripping("ab"), "expected one character");
}

TEST(TokenizerGuards, MetaspacePrependsAsItsSchemeSays) {
  const auto ids = [](const std::string& scheme) {
    const json metaspace = {
        {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", scheme}};
    const json changes = {{"pre_tokenizer", metaspace}, {"model", {{"vocab", {{"_", 3}}}}}};
    return parsed(changes).encode("a b");
  };
  EXPECT_EQ(ids("never"), (std::vector<TokenId>{0, 3, 1}));
  EXPECT_EQ(ids("first"), (std::vector<TokenId>{3, 0, 3, 1}));
  EXPECT_EQ(ids("always"), (std::vector<TokenId>{3, 0, 3, 1}));
}

TEST(TokenizerGuards, UnknownCharactersFuseAcrossAnUnknownMarker) {
  const json model = {{"vocab", {{"<unk>", 3}}}, {"unk_token", "<unk>"}, {"fuse_unk", true}};
  // U+2581 marks the beginning of a word, but is as unknown as the question marks here.
  const Tokenizer tokenizer = parsed({{"model", model}});
  EXPECT_EQ(tokenizer.encode("a?\xe2\x96\x81?b"), (std::vector<TokenId>{0, 3, 1}));
}

TEST(TokenizerGuards, ByteLevelKeepsTokensOutsideItsAlphabet) {
  const Tokenizer tokenizer =
      parsed({{"decoder", {{"type", "ByteLevel"}}}, {"model", {{"vocab", {{"a b", 3}}}}}});
  EXPECT_EQ(tokenizer.decode_bytes(std::vector<TokenId>{0, 3}), "aa b");
}

TEST(TokenizerGuards, TheDepthOfAFileIsLimited) {
  const auto nested = [](int depth) {
    json value = 1;
    for (int i = 0; i < depth; ++i) value = json::array({value});
    return json{{"truncation", value}};
  };
  EXPECT_NO_THROW(parsed(nested(31)));
  expect_refused(nested(32), "nesting no deeper than 32");
}

}  // namespace
}  // namespace diffattn::io
