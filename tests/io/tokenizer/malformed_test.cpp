// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <random>

#include "tests/io/tokenizer/reference_data.h"

namespace diffattn::io {
namespace {

using namespace testing;
using nlohmann::json;

/// Returns a small tokenizer.json with every kind of section.
json small_document() {
  return json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [
      {"id": 8, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true},
      {"id": 9, "content": "hi", "single_word": true, "lstrip": true, "rstrip": true,
       "normalized": true, "special": false}],
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "NFC"}, {"type": "Replace", "pattern": {"String": "x"}, "content": "y"}]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Digits", "individual_digits": true},
      {"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
       "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
    "post_processor": {"type": "Sequence", "processors": [
      {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
      {"type": "TemplateProcessing",
       "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
       "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [8], "tokens": ["<s>"]}}}]},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": "c", "continuing_subword_prefix": null,
      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
      "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "Ġ": 5, "<0x41>": 6},
      "merges": ["a b", ["ab", "c"]]}})");
}

Tokenizer parse_document(const json& document) {
  return Tokenizer::parse(document.dump(), "tokenizer.json");
}

TEST(TokenizerMalformed, TheSmallDocumentIsValid) {
  const Tokenizer tokenizer = parse_document(small_document());
  EXPECT_EQ(tokenizer.encode("abc ab hi <s>"), (std::vector<TokenId>{8, 4, 5, 3, 9, 8}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("abc ab")), "abc ab");
}

struct Case {
  const char* edit;      // a JSON pointer and a JSON value; "-" removes the value
  const char* fragment;  // expected part of the message
};

// Each case breaks one value; the message must name its position.
const Case kCases[] = {
    {"/model -", "key 'model'"},
    {"/model 3", "key 'model'"},
    {"/model []", "key 'model'"},
    {"/model/type \"Unigram\"", "key 'model.type': expected BPE"},
    {"/model/type 1", "key 'model.type'"},
    {"/model/vocab -", "key 'model.vocab'"},
    {"/model/vocab []", "key 'model.vocab'"},
    {"/model/vocab null", "key 'model.vocab'"},
    {"/model/vocab \"a\"", "key 'model.vocab'"},
    {"/model/vocab/a -1", "expected the id of a token, got '-1'"},
    {"/model/vocab/a 0.5", "expected the id of a token"},
    {"/model/vocab/a \"0\"", "expected the id of a token"},
    {"/model/vocab/a null", "expected the id of a token"},
    {"/model/vocab/a {}", "expected the id of a token"},
    {"/model/vocab/a [0]", "expected the id of a token"},
    {"/model/vocab/a 1", "expected unique ids, got 1"},
    {"/model/vocab/a 16777216", "expected an id below"},
    {"/model/vocab/a 4294967296", "expected an id below"},
    {"/model/vocab/a 18446744073709551615", "expected an id below"},
    {"/model/vocab/ 7", "expected a token of 1 to 4096 bytes"},
    {"/model/merges -", "key 'model.merges'"},
    {"/model/merges {}", "key 'model.merges'"},
    {"/model/merges/0 \"ab\"", "with one space between"},
    {"/model/merges/0 \" ab\"", "with one space between"},
    {"/model/merges/0 \"ab \"", "with one space between"},
    {"/model/merges/0 \"a b c\"", "with one space between"},
    {"/model/merges/0 \"a  b\"", "with one space between"},
    {"/model/merges/0 \"\"", "with one space between"},
    {"/model/merges/0 \"a z\"", "'z', which is not in it"},
    {"/model/merges/0 \"b a\"", "'ba', which is not in it"},
    {"/model/merges/0 \"h i\"", "'h', which is not in it"},
    {"/model/merges/0 []", "two tokens in a merge"},
    {"/model/merges/0 [\"a\"]", "two tokens in a merge"},
    {"/model/merges/0 [\"a\",\"b\",\"c\"]", "two tokens in a merge"},
    {"/model/merges/0 [\"a\",\"\"]", "expected a token of 1 to"},
    {"/model/merges/0 [\"a\",1]", "expected a merge"},
    {"/model/merges/0 [[\"a\"],\"b\"]", "expected a merge"},
    {"/model/merges/0 7", "expected a merge"},
    {"/model/merges/0 null", "expected a merge"},
    {"/model/merges/0 {}", "expected a merge"},
    {"/model/dropout 0.1", "key 'model.dropout'"},
    {"/model/unk_token \"?\"", "key 'model.unk_token'"},
    {"/model/continuing_subword_prefix \"##\"", "key 'model.continuing_subword_prefix'"},
    {"/model/end_of_word_suffix \"</w>\"", "key 'model.end_of_word_suffix'"},
    {"/model/byte_fallback 1", "key 'model.byte_fallback'"},
    {"/model/fuse_unk \"no\"", "key 'model.fuse_unk'"},
    {"/model/ignore_merges []", "key 'model.ignore_merges'"},
    {"/added_tokens {}", "key 'added_tokens'"},
    {"/added_tokens/0 1", "key 'added_tokens[0]'"},
    {"/added_tokens/0/content -", "key 'added_tokens[0].content'"},
    {"/added_tokens/0/content \"\"", "key 'added_tokens[0].content'"},
    {"/added_tokens/0/content \"hi\"", "key 'added_tokens[1].content'"},
    {"/added_tokens/0/content 5", "key 'added_tokens[0].content'"},
    {"/added_tokens/0/id -1", "key 'added_tokens[0].id'"},
    {"/added_tokens/0/id 0", "key 'added_tokens[0].id': expected an unused id"},
    {"/added_tokens/0/id 99999999", "key 'added_tokens[0].id'"},
    {"/added_tokens/0/id \"8\"", "key 'added_tokens[0].id'"},
    {"/added_tokens/1/content \"ab\"", "key 'added_tokens[1].id'"},
    {"/added_tokens/0/special 1", "key 'added_tokens[0].special'"},
    {"/normalizer/type \"NFKC\"", "key 'normalizer.type'"},
    {"/normalizer/normalizers -", "key 'normalizer.normalizers'"},
    {"/normalizer/normalizers {}", "key 'normalizer.normalizers'"},
    {"/normalizer/normalizers/1/pattern {\"Regex\":\"x\"}",
     "key 'normalizer.normalizers[1].pattern'"},
    {"/normalizer/normalizers/1/pattern {\"String\":\"\"}", "pattern.String'"},
    {"/normalizer []", "key 'normalizer'"},
    {"/pre_tokenizer/type \"Whitespace\"", "key 'pre_tokenizer.type'"},
    {"/pre_tokenizer/pretokenizers/0/individual_digits 1", "individual_digits"},
    {"/pre_tokenizer/pretokenizers/1/pattern/Regex \"(a+)+$\"", "got '(a+)+$'"},
    {"/pre_tokenizer/pretokenizers/1/pattern {\"String\":\" \"}", "pretokenizers[1].pattern'"},
    {"/pre_tokenizer/pretokenizers/1/behavior \"Removed\"", "pretokenizers[1].behavior'"},
    {"/pre_tokenizer/pretokenizers/1/behavior 1", "pretokenizers[1].behavior'"},
    {"/pre_tokenizer/pretokenizers/0 {\"type\":\"ByteLevel\"}", "ByteLevel as the last step"},
    {"/post_processor/type \"Other\"", "key 'post_processor.type'"},
    {"/post_processor/processors/1/single []", "sequence A"},
    {"/post_processor/processors/1/single/1/Sequence/id \"B\"", "sequence A"},
    {"/post_processor/processors/1/special_tokens {}", "special_tokens.<s>'"},
    {"/post_processor/processors/1/special_tokens/<s>/ids/0 77", "the id of a token"},
    {"/post_processor/processors/1/special_tokens/<s>/ids/0 7", "the id of a token"},
    {"/post_processor/processors/1/special_tokens/<s>/ids/0 -8", "ids[0]'"},
    {"/decoder/type \"WordPiece\"", "key 'decoder.type'"},
    {"/decoder {\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}", "after Fuse"},
    {"/decoder []", "key 'decoder'"},
};

void edit_document(json& document, const std::string& edit) {
  const auto space = edit.find(' ');
  const json::json_pointer place(edit.substr(0, space));
  const std::string value = edit.substr(space + 1);
  if (value == "-") {
    document[place.parent_pointer()].erase(place.back());
  } else {
    document[place] = json::parse(value);
  }
}

TEST(TokenizerMalformed, HandMadeFiles) {
  int count = 0;
  for (const Case& c : kCases) {
    json document = small_document();
    edit_document(document, c.edit);
    const std::string error = error_of([&] { parse_document(document); });
    EXPECT_TRUE(holds(error, c.fragment)) << c.edit << "\n" << error;
    EXPECT_TRUE(error.starts_with("tokenizer.json: ")) << error;
    ++count;
  }
  EXPECT_GE(count, 64);
}

TEST(TokenizerMalformed, Texts) {
  const std::string good = small_document().dump();
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "byte 0"},
      {"[]", "expected an object"},
      {"null", "expected an object"},
      {good + "x", "byte"},
      {"\xef\xbb\xbf" + good, "byte order mark"},
      {with("\"a\":0", "\"a\":0,\"a\":0"), "a second 'a'"},
      {with("\"merges\":", "\"merges\":[],\"merges\":"), "a second 'merges'"},
      {with("\"ab\":3", "\"ab\":3,\"\xff\":7"), "byte"},
      {with("\"ab\":3", "\"ab\":3e0"), "expected the id of a token"},
      {with("\"<0x41>\":6", "\"" + std::string(5000, 'z') + "\":6"), "1 to 4096 bytes"},
      {std::string(100'000, '['), "nesting"},
  };
  for (const auto& [text, fragment] : cases) {
    const std::string error = error_of([&] { Tokenizer::parse(text, "tokenizer.json"); });
    EXPECT_TRUE(holds(error, fragment)) << error;
  }
}

TEST(TokenizerMalformed, NestedSequencesAreRefusedNotFollowed) {
  json section = {{"type", "NFC"}};
  for (int i = 0; i < 10; ++i) {
    section = {{"type", "Sequence"}, {"normalizers", json::array({section})}};
  }
  json document = small_document();
  document["normalizer"] = section;
  EXPECT_TRUE(holds(error_of([&] { parse_document(document); }), "nested sequences"));
}

struct Tally {
  int tried = 0;
  int loaded = 0;

  // Any result but a working tokenizer or an io::Error fails the test.
  void attempt(const std::string& content) {
    ++tried;
    try {
      const Tokenizer tokenizer = Tokenizer::parse(content, "tokenizer.json");
      ++loaded;
      const auto ids = tokenizer.encode("abc hi 12 x's <s>  \xff\xe4\xb8\x96");
      for (const TokenId id : ids) ASSERT_LT(id, tokenizer.vocab_size());
      tokenizer.decode(ids);
      ASSERT_NO_THROW(Tokenizer::parse(tokenizer.to_json(), "again"));
    } catch (const Error& error) {
      if (error.offset()) {
        ASSERT_LE(*error.offset(), content.size()) << error.what();
      }
    }
  }
};

TEST(TokenizerMutation, EveryTruncationAndEveryBitFlip) {
  Tally cut, flip;
  const std::string content = small_document().dump();
  for (size_t size = 0; size < content.size(); ++size) cut.attempt(content.substr(0, size));
  std::string flipped = content;
  for (size_t bit = 0; bit < 8 * content.size(); ++bit) {
    const char mask = static_cast<char>(1 << (bit % 8));
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ mask);
    flip.attempt(flipped);
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ mask);
    ASSERT_FALSE(HasFatalFailure()) << "bit " << bit;
  }
  EXPECT_EQ(cut.loaded, 0);
  EXPECT_GT(flip.loaded, 0);
  EXPECT_GE(cut.tried + flip.tried, 10'000);
  RecordProperty("bit_flips", flip.tried);
  RecordProperty("still_valid", flip.loaded);
}

TEST(TokenizerMutation, RandomEdits) {
  std::mt19937 random(11);
  std::vector<std::string> seeds = {small_document().dump()};
  json other = small_document();
  other["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "\xe2\x96\x81"}, {"split", false}};
  other["decoder"] = json::parse(R"({"type":"Sequence","decoders":[
      {"type":"Replace","pattern":{"String":"_"},"content":" "},{"type":"ByteFallback"},
      {"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})");
  other["model"]["byte_fallback"] = true;
  seeds.push_back(other.dump());
  static const std::vector<std::string> kTokens = {"{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   ",",
                                                   ":",
                                                   "\"",
                                                   "0",
                                                   "-1",
                                                   "1e9",
                                                   "18446744073709551615",
                                                   "\\",
                                                   "{}",
                                                   "null",
                                                   "true",
                                                   "\"a\"",
                                                   "[8]",
                                                   "\xff",
                                                   "4096",
                                                   "16777215",
                                                   "\"ByteLevel\"",
                                                   "\"type\":",
                                                   "\"Sequence\"",
                                                   "\"<0x-1>\"",
                                                   "\"<0xGG>\""};
  Tally tally;
  for (int round = 0; round < 15'000; ++round) {
    std::string content = seeds[random() % seeds.size()];
    for (unsigned edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % content.size();
      const std::string& from = seeds[random() % seeds.size()];
      switch (random() % 4) {
        case 0: content.replace(at, random() % 12, kTokens[random() % kTokens.size()]); break;
        case 1: content.erase(at, random() % 12); break;
        case 2: content.insert(at, from.substr(random() % from.size(), random() % 40)); break;
        default: content[at] = static_cast<char>('0' + random() % 10);
      }
    }
    tally.attempt(content);
    ASSERT_FALSE(HasFatalFailure()) << "round " << round;
  }
  EXPECT_GT(tally.loaded, 0);
  RecordProperty("still_valid", tally.loaded);
}

}  // namespace
}  // namespace diffattn::io
