// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/tokenizer.h"

#include <nlohmann/json.hpp>

#include "diffattn/io/tokenizer_training.h"
#include "tests/io/allocation_probe.h"
#include "tests/io/test_files.h"

namespace diffattn::io {
namespace {

using nlohmann::json;
using testing::allocation_bound;
using testing::AllocationProbe;
using testing::error_of;
using testing::holds;

std::string document(const std::string& vocabulary, const std::string& merges) {
  return "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"},"
         "\"model\":{"
         "\"vocab\":{" +
         vocabulary + "},\"merges\":[" + merges + "]}}";
}

TEST(TokenizerLimits, MemoryStaysInProportionToTheFile) {
  std::string vocabulary = "\"a\":0";
  for (int i = 1; i < 300'000; ++i) {
    vocabulary += ",\"" + std::to_string(i) + "\":" + std::to_string(i);
  }
  const std::string text = document(vocabulary, "");
  AllocationProbe::reset();
  EXPECT_EQ(Tokenizer::parse(text, "tokenizer.json").vocab_size(), 300'000u);
  EXPECT_LE(AllocationProbe::largest(), allocation_bound(text.size()));
}

TEST(TokenizerLimits, FloodsOfMergesAndHugeIdsAreRefused) {
  std::string merges = "\"a b\"";
  for (int i = 0; i < 800'000; ++i) merges += ",\"a b\"";
  const std::string flood = document("\"a\":0,\"b\":1,\"ab\":2", merges);
  AllocationProbe::reset();
  EXPECT_TRUE(
      holds(error_of([&] { Tokenizer::parse(flood, "tokenizer.json"); }), "merges, got more"));
  EXPECT_LE(AllocationProbe::largest(), allocation_bound(flood.size()));

  const std::string far = document("\"a\":16000000", "");
  AllocationProbe::reset();
  EXPECT_TRUE(
      holds(error_of([&] { Tokenizer::parse(far, "tokenizer.json"); }), "expected an id below"));
  EXPECT_LE(AllocationProbe::largest(), allocation_bound(far.size()));
}

/// Returns a tokenizer.json with the tokens "a" and "b" and one section.
std::string with_section(const std::string& name, const json& section,
                         const json& added_tokens = json::array()) {
  const json document = {{name, section},
                         {"added_tokens", added_tokens},
                         {"model", {{"vocab", {{"a", 0}, {"b", 1}}}, {"merges", json::array()}}}};
  return document.dump();
}

json sequence(const std::string& list, const json& steps) {
  return {{"type", "Sequence"}, {list, steps}};
}

/// Returns `count` steps that each replace one "a" with 1000.
json multiplying_steps(size_t count) {
  const json step = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1000, 'a')}};
  return json(std::vector<json>(count, step));
}

void expect_refused(const std::string& text, const std::string& place) {
  AllocationProbe::reset();
  const std::string error = error_of([&] { Tokenizer::parse(text, "tokenizer.json"); });
  EXPECT_TRUE(holds(error, "tokenizer.json: key '" + place + "': expected")) << error;
  EXPECT_LE(AllocationProbe::peak_live(), allocation_bound(text.size()));
}

TEST(TokenizerLimits, ADecoderThatMultipliesIsRefusedAtItsStep) {
  expect_refused(with_section("decoder", sequence("decoders", multiplying_steps(4))),
                 "decoder.decoders[1]");
}

TEST(TokenizerLimits, ANormalizerThatMultipliesAnAddedTokenIsRefused) {
  const json added = {{{"id", 2}, {"content", "a!"}, {"normalized", true}}};
  expect_refused(with_section("normalizer", sequence("normalizers", multiplying_steps(4)), added),
                 "normalizer.normalizers[1]");
}

TEST(TokenizerLimits, ANormalizerCannotMultiplyText) {
  const Tokenizer tokenizer = Tokenizer::parse(
      with_section("normalizer", sequence("normalizers", multiplying_steps(4))), "tokenizer.json");
  AllocationProbe::reset();
  EXPECT_TRUE(holds(error_of([&] { tokenizer.encode("a"); }),
                    "key 'normalizer.normalizers[1]': expected steps that turn 1 bytes of text"));
  EXPECT_LE(AllocationProbe::peak_live(), allocation_bound(1));
}

TEST(TokenizerLimits, TheGrowthOfAllPiecesOfATextIsLimitedTogether) {
  const json prepend = {{"type", "Prepend"}, {"prepend", std::string(4096, 'b')}};
  const json added = {{{"id", 2}, {"content", "<s>"}, {"special", true}, {"normalized", false}}};
  const Tokenizer tokenizer =
      Tokenizer::parse(with_section("normalizer", prepend, added), "tokenizer.json");
  EXPECT_EQ(tokenizer.encode("a").size(), 4097u);
  std::string pieces;
  for (int i = 0; i < 1000; ++i) pieces += "a<s>";
  EXPECT_TRUE(holds(error_of([&] { tokenizer.encode(pieces); }), "key 'normalizer'"));
}

TEST(TokenizerLimits, StepsMayLengthenTextAsPublishedTokenizersDo) {
  const json steps = {
      {{"type", "Prepend"}, {"prepend", "b"}},
      {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(40, 'a')}}};
  const Tokenizer tokenizer =
      Tokenizer::parse(with_section("normalizer", sequence("normalizers", steps)), "file");
  EXPECT_EQ(tokenizer.encode(std::string(100'000, 'a')).size(), 4'000'001u);
}

TEST(TokenizerLimits, NestedSequencesDoNotMultiplySteps) {
  const json five = sequence("pretokenizers", std::vector<json>(5, {{"type", "Digits"}}));
  const json fifteen = sequence("pretokenizers", std::vector<json>(3, five));
  expect_refused(with_section("pre_tokenizer", fifteen),
                 "pre_tokenizer.pretokenizers[2].pretokenizers");
  const json ten = sequence("pretokenizers", std::vector<json>(2, five));
  EXPECT_NO_THROW(Tokenizer::parse(with_section("pre_tokenizer", ten), "tokenizer.json"));
}

TEST(TokenizerLimits, APreTokenizerCannotDoubleTheTextAtEveryStep) {
  json steps = json::array();
  for (const char* digit : {"0", "2", "3", "4", "5", "6", "7", "8"}) {
    steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
    steps.push_back({{"type", "Metaspace"}, {"replacement", digit}, {"prepend_scheme", "always"}});
  }
  expect_refused(with_section("pre_tokenizer", sequence("pretokenizers", steps)),
                 "pre_tokenizer.pretokenizers[3].type");
}

TEST(TokenizerLimits, TrainingMakesNoTokenThatAFileCannotHold) {
  TokenizerTrainer trainer({.vocab_size = 300, .threads = 1});
  const std::string text = std::string(16'384, ' ') + "\nend end";
  trainer.add_text(text);
  const Tokenizer tokenizer = trainer.train();
  size_t longest = 0;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.id_to_token(id)->size());
  }
  EXPECT_EQ(longest, kMaxTokenBytes);
  EXPECT_TRUE(tokenizer.token_to_id("end").has_value()) << "shorter pairs are still merged";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

}  // namespace
}  // namespace diffattn::io
