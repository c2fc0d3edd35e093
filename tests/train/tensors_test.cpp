// SPDX-License-Identifier: Apache-2.0
#include "diffattn/data/tensors.h"

#include <gtest/gtest.h>

namespace diffattn::data::tensors_test {
namespace {

TEST(Tensors, RowsBecomePackedSequences) {
  PackedTensors tensors;
  {
    const Corpus corpus = Corpus::of_tokens({5, 6, 7, 8, 9}, {{0, 3}, {3, 5}});
    PackedRows rows(corpus, {.seq_len = 4, .batch_size = 2, .shuffle = false, .endless = false});
    tensors = to_tensors(rows.next());
  }
  EXPECT_TRUE(torch::equal(tensors.ids, torch::tensor({5, 6, 7, 8, 9}, torch::kInt64)));
  EXPECT_EQ(tensors.labels[0].item<std::int64_t>(), 6);
  EXPECT_EQ(tensors.positions.dtype(), torch::kInt64);
  EXPECT_TRUE(torch::equal(tensors.cu_seqlens, torch::tensor({0, 3, 4, 5}, torch::kInt32)));
  EXPECT_EQ(tensors.max_segment, 3);
}

TEST(Tensors, PaddedRowsAreATable) {
  ExampleSet set;
  set.examples = {{.source = {1, 2, 3}, .target = {}}, {.source = {4}, .target = {}}};
  const PaddedTensors tensors = to_tensors(pad_sources(set, std::vector<std::uint64_t>{1, 0}, 9));
  EXPECT_TRUE(torch::equal(tensors.ids, torch::tensor({{4, 9, 9}, {1, 2, 3}}, torch::kInt64)));
  EXPECT_TRUE(torch::equal(tensors.lengths, torch::tensor({1, 3}, torch::kInt64)));
}

}  // namespace
}  // namespace diffattn::data::tensors_test
