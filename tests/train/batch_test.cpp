// SPDX-License-Identifier: Apache-2.0
#include "diffattn/train/batch.h"

#include <gtest/gtest.h>

namespace diffattn::train::batch_test {
namespace {

TEST(Batch, CorpusRowsBecomePackedSequences) {
  const auto corpus = data::Corpus::of_tokens({5, 6, 7, 8, 9}, {{0, 3}, {3, 5}});
  data::PackedRows rows(corpus,
                        {.seq_len = 4, .batch_size = 2, .shuffle = false, .endless = false});
  const Batch batch = packed_batch(rows.next());
  EXPECT_TRUE(torch::equal(batch.ids, torch::tensor({5, 6, 7, 8, 9}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(batch.labels, torch::tensor({6, 7, -100, 9, -100}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(*batch.positions, torch::tensor({0, 1, 2, 0, 0}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(*batch.mask.cu_seqlens_q(), torch::tensor({0, 3, 4, 5}, torch::kInt32)));
  EXPECT_FALSE(packed_batch(rows.next()).ids.defined());
}

TEST(Batch, GeneratedRowsKnowWhichLabelsCount) {
  data::RowBatch rows;
  rows.rows = 2;
  rows.seq_len = 3;
  rows.ids = {1, 2, 3, 4, 5, 6};
  rows.labels = {-100, 7, -100, -100, -100, 8};
  const Batch batch = sequence_batch(rows);
  EXPECT_TRUE(torch::equal(batch.ids, torch::tensor({{1, 2, 3}, {4, 5, 6}}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(*batch.answer_rows, torch::tensor({1, 5}, torch::kInt64)));
}

TEST(Batch, TextsArePaddedOnTheRight) {
  data::ExampleSet set;
  set.examples = {{.source = {4}, .target = {7, 8}, .label = 1},
                  {.source = {1, 2, 3}, .target = {9}}};
  const Batch texts = classification_batch(set);
  EXPECT_TRUE(torch::equal(texts.ids, torch::tensor({{4, 0, 0}, {1, 2, 3}}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(*texts.mask.key_lengths(), torch::tensor({1, 3}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(texts.labels, torch::tensor({1, 0}, torch::kInt64)));
  const Batch summaries = summarization_batch(set, 6);
  EXPECT_TRUE(torch::equal(summaries.ids, texts.ids));
  EXPECT_TRUE(torch::equal(summaries.target_ids, torch::tensor({{6, 7}, {6, 0}}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(summaries.labels, torch::tensor({{7, 8}, {9, -100}}, torch::kInt64)));
}

}  // namespace
}  // namespace diffattn::train::batch_test
