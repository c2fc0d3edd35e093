// SPDX-License-Identifier: Apache-2.0
#include "diffattn/data/examples.h"

#include <set>

#include "tests/io/test_files.h"

namespace diffattn::data::examples_test {
namespace {

using io::testing::error_of;
using io::testing::holds;
using io::testing::TempFolder;

const io::Tokenizer& bytes() {
  static const io::Tokenizer tokenizer = io::Tokenizer::bytes();
  return tokenizer;
}

TEST(Examples, LabelsAreSortedNumbersAsNumbers) {
  const TempFolder folder;
  const std::string path =
      folder.put("d.jsonl",
                 "{\"text\":\"a\",\"label\":10}\n{\"text\":\"b\",\"label\":9}\n"
                 "{\"text\":\"c\",\"label\":\"x\"}\n{\"text\":\"d\",\"label\":\"9\"}\n");
  const ExampleSet set = read_examples(path, io::RecordKind::kLabelled, bytes());
  EXPECT_EQ(set.label_names, (std::vector<std::string>{"9", "10", "x"}));
  std::vector<int64_t> labels;
  for (const Example& example : set.examples) labels.push_back(example.label);
  EXPECT_EQ(labels, (std::vector<int64_t>{1, 0, 2, 0}));
  EXPECT_EQ(set.examples[2].source, (std::vector<TokenId>{'c'}));
}

TEST(Examples, KnownLabelsKeepTheirPlaceAndOthersAreBadLines) {
  const TempFolder folder;
  const std::string path = folder.put(
      "d.jsonl", "{\"text\":\"a\",\"label\":\"no\"}\n{\"text\":\"b\",\"label\":\"maybe\"}\n");
  ExampleOptions options;
  options.label_names = {"yes", "no"};
  const auto read = [&](ReadReport* report = nullptr) {
    return read_examples(path, io::RecordKind::kLabelled, bytes(), options, report);
  };
  EXPECT_TRUE(holds(error_of([&] { read(); }),
                    "line 2: key 'label': expected one of 2 known labels, got 'maybe'"));
  options.skip_bad = true;
  ReadReport report;
  const ExampleSet set = read(&report);
  EXPECT_EQ(set.examples.size(), 1u);
  EXPECT_EQ(set.examples[0].label, 1);
  EXPECT_EQ(set.label_names, options.label_names);
  EXPECT_EQ(report.skipped, 1u);
}

TEST(Examples, EmptyTextsAreBadLines) {
  const TempFolder folder;
  const std::string texts =
      folder.put("t.jsonl", "{\"text\":\"a\",\"label\":\"x\"}\n{\"text\":\"\",\"label\":\"y\"}\n");
  const std::string documents = folder.put("d.jsonl", "{\"document\":\"\",\"summary\":\"a\"}\n");
  ExampleOptions options;
  const auto read = [&](const std::string& path, io::RecordKind kind) {
    return read_examples(path, kind, bytes(), options);
  };
  EXPECT_TRUE(holds(error_of([&] { read(texts, io::RecordKind::kLabelled); }),
                    "line 2: key 'text': expected at least one token, got none"));
  EXPECT_TRUE(holds(error_of([&] { read(documents, io::RecordKind::kSummary); }),
                    "line 1: key 'document': expected at least one token, got none"));
  options.skip_bad = true;
  const ExampleSet set = read(texts, io::RecordKind::kLabelled);
  EXPECT_EQ(set.examples.size(), 1u);
  EXPECT_EQ(set.label_names, std::vector<std::string>{"x"});
}

TEST(Examples, SummariesEndAndLongTextsAreCut) {
  const TempFolder folder;
  const std::string path = folder.put("d.jsonl",
                                      "{\"document\":\"abcdef\",\"summary\":\"xyz\"}\n"
                                      "{\"document\":\"ab\",\"summary\":\"x\"}\n");
  ExampleOptions options;
  options.max_source_tokens = 4;
  options.max_target_tokens = 3;
  const ExampleSet set = read_examples(path, io::RecordKind::kSummary, bytes(), options);
  EXPECT_EQ(set.examples[0].source, (std::vector<TokenId>{'a', 'b', 'c', 'd'}));
  EXPECT_EQ(set.examples[0].target, (std::vector<TokenId>{'x', 'y', 256}));
  EXPECT_EQ(set.truncated, 1u);
  const std::vector<uint64_t> both = {0, 1};
  const PaddedBatch sources = pad_sources(set, both, 7);
  EXPECT_EQ(sources.ids, (std::vector<int64_t>{'a', 'b', 'c', 'd', 'a', 'b', 7, 7}));
  EXPECT_EQ(sources.lengths, (std::vector<int64_t>{4, 2}));
  const PaddedBatch targets = pad_targets(set, both, 256, 7);
  EXPECT_EQ(targets.ids, (std::vector<int64_t>{256, 'x', 'y', 256, 'x', 7}));
  EXPECT_EQ(target_labels(set, both), (std::vector<int64_t>{'x', 'y', 256, 'x', 256, -100}));
}

TEST(Examples, NoneIsAnError) {
  const TempFolder folder;
  const std::string path = folder.put("d.jsonl", "\n");
  EXPECT_TRUE(
      holds(error_of([&] { read_examples(path, io::RecordKind::kSummary, bytes()); }), "got none"));
  EXPECT_THROW(read_examples(path, io::RecordKind::kText, bytes()), io::Error);
}

TEST(Examples, SplitsShareNothing) {
  ExampleSet set;
  for (TokenId i = 0; i < 50; ++i) set.examples.push_back({.source = {i}, .target = {}});
  const auto [train, valid] = set.split(0.2, 9);
  EXPECT_EQ(valid.examples.size(), 10u);
  std::set<TokenId> seen;
  for (const ExampleSet* part : {&train, &valid}) {
    for (const Example& example : part->examples)
      EXPECT_TRUE(seen.insert(example.source[0]).second);
  }
  EXPECT_EQ(seen.size(), 50u);
}

TEST(ShuffledIndices, EveryExampleOncePerEpochAndExactResume) {
  const RowOptions options{.batch_size = 3, .seed = 5};
  ShuffledIndices indices(10, options);
  std::vector<uint64_t> all;
  std::vector<std::string> positions;
  for (int i = 0; i < 20; ++i) {
    positions.push_back(indices.position());
    const auto batch = indices.next();
    all.insert(all.end(), batch.begin(), batch.end());
  }
  for (size_t epoch = 0; epoch < 6; ++epoch) {
    const auto begin = all.begin() + static_cast<ptrdiff_t>(10 * epoch);
    EXPECT_EQ(std::set<uint64_t>(begin, begin + 10).size(), 10u);
  }
  EXPECT_NE(std::vector(all.begin(), all.begin() + 10),
            std::vector(all.begin() + 10, all.begin() + 20));
  for (size_t i = 0; i < positions.size(); ++i) {
    ShuffledIndices resumed(10, options);
    resumed.seek(positions[i]);
    const auto batch = resumed.next();
    EXPECT_TRUE(
        std::equal(batch.begin(), batch.end(), all.begin() + static_cast<ptrdiff_t>(3 * i)));
  }
  ShuffledIndices other(11, options);
  EXPECT_TRUE(holds(error_of([&] { other.seek(positions[1]); }), "key 'size'"));
}

TEST(ShuffledIndices, OnePassOverRanks) {
  std::set<uint64_t> seen;
  for (int64_t rank = 0; rank < 2; ++rank) {
    ShuffledIndices indices(9, {.batch_size = 2, .endless = false, .rank = rank, .world_size = 2});
    for (auto batch = indices.next(); !batch.empty(); batch = indices.next()) {
      for (const uint64_t i : batch) EXPECT_TRUE(seen.insert(i).second);
    }
  }
  EXPECT_EQ(seen.size(), 9u);
}

}  // namespace
}  // namespace diffattn::data::examples_test
