// SPDX-License-Identifier: Apache-2.0
#include "diffattn/data/corpus.h"
#include "diffattn/data/examples.h"

#include <nlohmann/json.hpp>
#include <set>

#include "tests/io/test_files.h"

namespace diffattn::data::corpus_test {
namespace {

using io::testing::error_of;
using io::testing::holds;
using io::testing::TempFolder;

const io::Tokenizer& bytes() {
  static const io::Tokenizer tokenizer = io::Tokenizer::bytes();
  return tokenizer;
}

/// Returns the documents as text, with '|' for the end-of-text token.
std::vector<std::string> texts_of(const Corpus& corpus) {
  std::vector<std::string> texts;
  for (const Document& document : corpus.documents()) {
    std::vector<TokenId> ids(document.end - document.begin);
    corpus.read(document.begin, ids);
    texts.emplace_back();
    for (const TokenId id : ids) texts.back() += id == 256 ? '|' : static_cast<char>(id);
  }
  return texts;
}

using Texts = std::vector<std::string>;

TEST(ReadCorpus, ATextFileIsOneDocument) {
  const TempFolder folder;
  ReadReport report;
  const Corpus corpus = read_corpus(folder.put("a.txt", "one\ntwo\n"), bytes(), {}, &report);
  EXPECT_EQ(texts_of(corpus), Texts{"one\ntwo\n|"});
  EXPECT_EQ(corpus.tokens(), 9u);
  EXPECT_EQ(report.files, 1u);
  EXPECT_EQ(report.bytes, 8u);
  EXPECT_EQ(report.documents, 1u);
  EXPECT_EQ(report.tokens, 9u);
  EXPECT_EQ(
      texts_of(read_corpus(folder / "a.txt", bytes(), {.end_of_text = false, .progress = {}})),
      Texts{"one\ntwo\n"});
}

TEST(ReadCorpus, AFolderIsReadInOrderOfPaths) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "b/c");
  std::filesystem::create_directories(folder / ".git");
  folder.put("z.txt", "Z");
  folder.put("a.jsonl", "{\"text\":\"1\"}\n{\"text\":\"2\"}\n");
  folder.put("b/c/x", "X");
  folder.put("b/d", "D");
  folder.put("b/empty", "");
  folder.put(".git/config", "no");
  folder.put(".hidden", "no");
  folder.put("b/compiled.pyc", std::string_view("no\0", 3));
  ReadReport report;
  EXPECT_EQ(texts_of(read_corpus(folder.path(), bytes(), {}, &report)),
            (Texts{"1|", "2|", "X|", "D|", "Z|"}));
  EXPECT_EQ(report.files, 5u);
  EXPECT_EQ(report.bytes, report.total_bytes);
}

TEST(ReadCorpus, BadLinesAreErrorsOrCounted) {
  const TempFolder folder;
  const std::string path =
      folder.put("d.jsonl", "{\"text\":\"a\"}\n{\"txt\":\"b\"}\n{\"text\":\"c\"}\n");
  const std::string error = error_of([&] { read_corpus(path, bytes()); });
  EXPECT_TRUE(holds(error, "d.jsonl: line 2: key 'text'")) << error;
  ReadReport report;
  const Corpus corpus = read_corpus(path, bytes(), {.skip_bad = true, .progress = {}}, &report);
  EXPECT_EQ(texts_of(corpus), (Texts{"a|", "c|"}));
  EXPECT_EQ(report.skipped, 1u);
  EXPECT_TRUE(holds(report.first_fault, "line 2"));
}

TEST(ReadCorpus, NothingToReadIsAnError) {
  const TempFolder folder;
  EXPECT_TRUE(holds(error_of([&] { read_corpus(folder.path(), bytes()); }), "got none"));
  EXPECT_TRUE(holds(error_of([&] { read_corpus(folder.put("a", ""), bytes()); }), "expected text"));
  EXPECT_TRUE(holds(error_of([&] { read_corpus(folder / "missing", bytes()); }), "missing"));
  // The end-of-text token of an empty document is no text.
  const std::string empty = folder.put("e.jsonl", "{\"text\":\"\"}\n{\"text\":\"\"}\n");
  EXPECT_TRUE(holds(error_of([&] { read_corpus(empty, bytes()); }), "expected text, got none"));
  const std::string short_text = folder.put("s.txt", "x");
  EXPECT_TRUE(holds(
      error_of([&] { read_corpus(short_text, bytes(), {.end_of_text = false, .progress = {}}); }),
      "expected a document of at least 2 tokens"));
}

TEST(ReadCorpus, SpecialTokensAroundDocuments) {
  nlohmann::json file = nlohmann::json::parse(bytes().to_json());
  file["post_processor"] = nlohmann::json::parse(
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|endoftext|>","type_id":0}},
          {"Sequence":{"id":"A","type_id":0}}],"pair":[],
          "special_tokens":{"<|endoftext|>":{"id":"<|endoftext|>","ids":[256],"tokens":["<|endoftext|>"]}}})");
  const io::Tokenizer tokenizer = io::Tokenizer::parse(file.dump(), "t");
  const TempFolder folder;
  EXPECT_EQ(texts_of(read_corpus(folder.put("a", "x"), tokenizer)), Texts{"|x|"});
  const std::string empty = folder.put("e.jsonl", "{\"text\":\"\",\"label\":\"y\"}\n");
  EXPECT_TRUE(holds(error_of([&] { read_examples(empty, io::RecordKind::kLabelled, tokenizer); }),
                    "expected texts, got only empty ones"));
}

TEST(WriteCorpus, TokenFileEqualsText) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 300'000; ++i) text += "word" + std::to_string(i % 77) + " x ";
  folder.put("a.txt", text);
  folder.put("b.jsonl", "{\"text\":\"1\"}\n{\"text\":\"2\"}\n");
  const TempFolder out;
  uint64_t calls = 0;
  const ReadReport report = write_corpus(folder.path(), bytes(), out / "tokens",
                                         {.progress = [&](const ReadReport&) { ++calls; }});
  EXPECT_EQ(report.documents, 3u);
  EXPECT_GE(calls, 2u);
  const Corpus from_file = read_corpus(out / "tokens", bytes());
  const Corpus from_text = read_corpus(folder.path(), bytes());
  EXPECT_EQ(texts_of(from_file), texts_of(from_text));
  EXPECT_EQ(texts_of(from_file).at(0), text + "|");
}

TEST(WriteCorpus, AnotherTokenizerIsRefused) {
  const TempFolder folder;
  io::TokenFileWriter writer(folder / "tokens", 257, bytes().hash() + 1);
  writer.append(std::vector<TokenId>{1, 2});
  writer.commit();
  EXPECT_TRUE(holds(error_of([&] { read_corpus(folder / "tokens", bytes()); }), "byte 40"));
}

TEST(Corpus, SplitsShareNothingAndLoseNothing) {
  for (const size_t count : {1u, 2u, 5u, 19u, 20u, 100u, 1000u}) {
    std::vector<TokenId> tokens;
    std::vector<Document> documents;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t begin = tokens.size();
      for (size_t k = 0; k < 10 + i % 7; ++k) tokens.push_back(static_cast<TokenId>(tokens.size()));
      documents.push_back({begin, tokens.size()});
    }
    const Corpus corpus = Corpus::of_tokens(tokens, documents);
    const auto [train, valid] = corpus.split(0.1, 3);
    std::set<uint64_t> seen;
    for (const Corpus& part : {train, valid}) {
      for (const Document& document : part.documents()) {
        for (uint64_t t = document.begin; t < document.end; ++t) EXPECT_TRUE(seen.insert(t).second);
      }
    }
    EXPECT_EQ(seen.size(), tokens.size());
    EXPECT_EQ(train.tokens() + valid.tokens(), tokens.size());
    const double part = static_cast<double>(valid.tokens()) / static_cast<double>(tokens.size());
    EXPECT_NEAR(part, 0.1, count < 100 ? 0.06 : 0.03) << count;
    EXPECT_NE(train.fingerprint(), valid.fingerprint());
    EXPECT_EQ(corpus.split(0.1, 3).second.fingerprint(), valid.fingerprint());
  }
  const Corpus corpus = Corpus::of_tokens({1, 2, 3}, {{0, 3}});
  EXPECT_EQ(corpus.split(0, 1).second.tokens(), 0u);
  EXPECT_THROW(corpus.split(1, 1), io::Error);
  EXPECT_THROW(Corpus::of_tokens({1}, {{0, 2}}), io::Error);
}

}  // namespace
}  // namespace diffattn::data::corpus_test
