// SPDX-License-Identifier: Apache-2.0
#include "diffattn/io/tokenizer_training.h"
#include "io/unicode/nfc.h"
#include "tests/io/tokenizer/reference_data.h"

namespace diffattn::io {
namespace {

using namespace testing;

class TokenizerReference : public ::testing::TestWithParam<std::string> {};

TEST_P(TokenizerReference, SameIds) {
  const Tokenizer tokenizer = Tokenizer::read(data_file(GetParam() + ".json"));
  const auto expected = reference_ids(GetParam());
  const auto& strings = reference_strings();
  ASSERT_GE(strings.size(), 2000u);
  ASSERT_EQ(expected.size(), strings.size());
  size_t wrong = 0;
  for (size_t i = 0; i < strings.size(); ++i) {
    const std::vector<TokenId> ids = tokenizer.encode(strings[i]);
    if (ids != expected[i] && ++wrong <= 5) {
      ADD_FAILURE() << "string " << i << ": " << nlohmann::json(strings[i]) << "\n got "
                    << nlohmann::json(ids) << "\nwant " << nlohmann::json(expected[i]);
    }
  }
  EXPECT_EQ(wrong, 0u);
}

TEST_P(TokenizerReference, SameText) {
  const Tokenizer tokenizer = Tokenizer::read(data_file(GetParam() + ".json"));
  const auto ids = reference_ids(GetParam());
  const nlohmann::json expected = data_json(GetParam() + ".decoded.json");
  ASSERT_EQ(expected.size(), (ids.size() + 7) / 8);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i].is_null()) continue;
    EXPECT_EQ(tokenizer.decode(ids[8 * i]), expected[i].get<std::string>()) << "string " << 8 * i;
  }
}

// A written tokenizer gives the same ids and the same file when it is read again.
TEST_P(TokenizerReference, WrittenFileIsTheSameTokenizer) {
  const TempFolder folder;
  const Tokenizer tokenizer = Tokenizer::read(data_file(GetParam() + ".json"));
  tokenizer.write(folder / "tokenizer.json");
  const Tokenizer again = Tokenizer::read(folder.path());
  EXPECT_EQ(again.to_json(), tokenizer.to_json());
  EXPECT_EQ(again.hash(), tokenizer.hash());
  EXPECT_EQ(again.vocab_size(), tokenizer.vocab_size());
  const auto expected = reference_ids(GetParam());
  for (size_t i = 0; i < expected.size(); i += 3) {
    ASSERT_EQ(again.encode(reference_strings()[i]), expected[i]);
  }
  // Every section of the original is unchanged.
  nlohmann::json original = data_json(GetParam() + ".json");
  nlohmann::json written = nlohmann::json::parse(tokenizer.to_json());
  const auto as_pairs = [](nlohmann::json& merges) {
    for (auto& merge : merges) {
      if (!merge.is_string()) continue;
      const std::string text = merge;
      const auto space = text.find(' ');
      merge = {text.substr(0, space), text.substr(space + 1)};
    }
  };
  as_pairs(original["model"]["merges"]);
  as_pairs(written["model"]["merges"]);
  EXPECT_EQ(written, original);
}

INSTANTIATE_TEST_SUITE_P(Styles, TokenizerReference, ::testing::ValuesIn(styles()),
                         [](const auto& info) { return info.param; });

TEST(Nfc, AsTheUnicodeDatabase) {
  const nlohmann::json pairs = data_json("nfc.json");
  ASSERT_GE(pairs.size(), 1000u);
  for (const auto& pair : pairs) {
    const std::string text = pair[0], expected = pair[1];
    EXPECT_EQ(unicode::nfc(text), expected) << pair;
    EXPECT_EQ(unicode::nfc(expected), expected) << pair;
    // Characters do not compose across an invalid byte.
    EXPECT_EQ(unicode::nfc(text + "\xff" + text), expected + "\xff" + expected);
  }
}

struct TrainedStyle {
  std::string name;
  WordPattern pattern;
  bool nfc;
};

class TrainerReference : public ::testing::TestWithParam<TrainedStyle> {};

// Training gives the same vocabulary, the same ids and the same merges in the same order.
TEST_P(TrainerReference, SameVocabularyAndMerges) {
  TokenizerTrainer trainer({.vocab_size = 600,
                            .min_frequency = 2,
                            .pattern = GetParam().pattern,
                            .nfc = GetParam().nfc,
                            .special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}});
  trainer.add_text(slurp(data_file("corpus.txt")));
  const nlohmann::json trained = nlohmann::json::parse(trainer.train().to_json());
  const nlohmann::json expected =
      nlohmann::json::parse(Tokenizer::read(data_file(GetParam().name + ".json")).to_json());
  EXPECT_EQ(trained["model"]["vocab"], expected["model"]["vocab"]);
  EXPECT_EQ(trained["model"]["merges"], expected["model"]["merges"]);
  EXPECT_EQ(trained["normalizer"], expected["normalizer"]);
}

INSTANTIATE_TEST_SUITE_P(Styles, TrainerReference,
                         ::testing::Values(TrainedStyle{"gpt2", WordPattern::kGpt2, false},
                                           TrainedStyle{"qwen2", WordPattern::kQwen2, true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace diffattn::io
