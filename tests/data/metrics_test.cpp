// SPDX-License-Identifier: Apache-2.0
#include "diffattn/data/metrics.h"

#include <gtest/gtest.h>

#include "diffattn/error.h"

namespace diffattn::data {
namespace {

// Counted by hand, with 6 words each. Unigrams in common: the (2), cat, on, mat = 5 of 6 and 6.
// Bigrams in common: the cat, on the, the mat = 3 of 5 and 5. Longest common subsequence: the cat
// on the mat = 5.
TEST(Rouge, CatOnTheMat) {
  const Rouge r = rouge("The cat sat on the mat.", "the cat lay on the mat");
  EXPECT_DOUBLE_EQ(r.rouge1, 5.0 / 6);
  EXPECT_DOUBLE_EQ(r.rouge2, 3.0 / 5);
  EXPECT_DOUBLE_EQ(r.rouge_l, 5.0 / 6);
}

// The example of the paper that defined ROUGE-L: with 4 words each, the recall is 3/4 and 2/4.
TEST(Rouge, OrderCountsInTheLongestSubsequence) {
  EXPECT_DOUBLE_EQ(rouge("police kill the gunman", "police killed the gunman").rouge_l, 0.75);
  EXPECT_DOUBLE_EQ(rouge("the gunman kill police", "police killed the gunman").rouge_l, 0.5);
}

// Precision 2/8 (only two of eight "the" are in the reference), recall 2/3: F1 = 4/11.
TEST(Rouge, RepeatedWordsCountAsOftenAsBothHaveThem) {
  const std::vector<int64_t> the(8, 1), reference{1, 2, 1};
  const Rouge r = rouge(the, reference);
  EXPECT_DOUBLE_EQ(r.rouge1, 4.0 / 11);
  EXPECT_DOUBLE_EQ(r.rouge2, 0.0);
  EXPECT_DOUBLE_EQ(r.rouge_l, 4.0 / 11);
}

TEST(Rouge, EmptyOrDisjointTexts) {
  EXPECT_DOUBLE_EQ(rouge("", "").rouge1, 1.0);
  EXPECT_DOUBLE_EQ(rouge("", "a b").rouge_l, 0.0);
  EXPECT_DOUBLE_EQ(rouge("a", "b").rouge1, 0.0);
  EXPECT_DOUBLE_EQ(rouge("... !", "a").rouge1, 0.0);
  EXPECT_DOUBLE_EQ(rouge("GRÜN, Welt", "grün welt").rouge1, 0.5);  // only ASCII changes case
}

// One word has no bigram, so rouge2 is 0 even for equal words.
TEST(Rouge, SingleWordsHaveNoBigrams) {
  const auto expect = [](const Rouge& r, double rouge1, double rouge2, double rouge_l) {
    EXPECT_DOUBLE_EQ(r.rouge1, rouge1);
    EXPECT_DOUBLE_EQ(r.rouge2, rouge2);
    EXPECT_DOUBLE_EQ(r.rouge_l, rouge_l);
  };
  expect(rouge("aa", "beta"), 0, 0, 0);
  expect(rouge("beta", "beta"), 1, 0, 1);
  expect(rouge("beta", "beta gamma"), 2.0 / 3, 0, 2.0 / 3);
  expect(rouge("", "beta"), 0, 0, 0);
  expect(rouge("", " ..."), 1, 1, 1);
}

// Labels 0 0 0 1 1 2, predictions 0 0 1 1 2 2: f1 = 2*2/(2+3), 2*1/(2+2), 2*1/(2+1).
TEST(Confusion, AccuracyAndMacroF1) {
  Confusion confusion(3);
  const int64_t pairs[][2] = {{0, 0}, {0, 0}, {0, 1}, {1, 1}, {1, 2}, {2, 2}};
  for (const auto& [label, predicted] : pairs) confusion.add(label, predicted);
  EXPECT_EQ(confusion.count(0, 1), 1);
  EXPECT_EQ(confusion.count(1, 0), 0);
  EXPECT_DOUBLE_EQ(confusion.accuracy(), 4.0 / 6);
  EXPECT_DOUBLE_EQ(confusion.f1(0), 0.8);
  EXPECT_DOUBLE_EQ(confusion.f1(1), 0.5);
  EXPECT_DOUBLE_EQ(confusion.macro_f1(), (0.8 + 0.5 + 2.0 / 3) / 3);
}

TEST(Confusion, ClassesThatNeverOccurDoNotCount) {
  Confusion confusion(4);
  confusion.add(1, 1);
  EXPECT_DOUBLE_EQ(confusion.macro_f1(), 1.0);
  EXPECT_DOUBLE_EQ(Confusion(2).accuracy(), 0.0);
  EXPECT_THROW(confusion.add(4, 0), diffattn::Error);
  EXPECT_THROW(confusion.add(0, -1), diffattn::Error);
}

}  // namespace
}  // namespace diffattn::data
