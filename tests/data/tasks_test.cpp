// SPDX-License-Identifier: Apache-2.0
#include "diffattn/data/tasks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "diffattn/io/error.h"

namespace diffattn::data::tasks_test {
namespace {

/// Checks that the key between the mark and the answer occurs in the facts, followed by the answer.
void expect_answerable(const TaskSequence& sequence, const SequenceTask& task, int64_t questions,
                       int64_t key_length) {
  ASSERT_EQ(std::ssize(sequence.ids), task.length());
  ASSERT_EQ(sequence.labels.size(), sequence.ids.size());
  ASSERT_EQ(std::ssize(sequence.questions), questions);
  for (const int64_t id : sequence.ids) ASSERT_TRUE(id >= kTaskTokens || id == kTaskMark);
  for (const int64_t id : sequence.ids) ASSERT_LT(id, task.vocab_size());
  int64_t labels = 0;
  for (const int64_t label : sequence.labels) labels += label != kIgnoredLabel;
  ASSERT_EQ(labels, questions);
  for (const Question& question : sequence.questions) {
    const auto key_begin = sequence.ids.begin() + question.asked + 1 - key_length;
    ASSERT_EQ(*(key_begin - 1), kTaskMark);
    // The key occurs once before the questions: in its fact.
    const auto found =
        std::search(sequence.ids.begin(), sequence.ids.end(), key_begin, key_begin + key_length);
    ASSERT_EQ(found - sequence.ids.begin() + key_length, question.answer);
    const int64_t value = sequence.ids[static_cast<size_t>(question.answer)];
    ASSERT_EQ(sequence.labels[static_cast<size_t>(question.asked)], value);
    ASSERT_EQ(sequence.ids[static_cast<size_t>(question.asked) + 1], value);
  }
}

TEST(NeedleTask, EveryQuestionHasItsNeedle) {
  for (const int64_t needles : {1, 4, 32}) {
    const auto task =
        needle_task({.length = 64, .needles = needles, .asked = 1, .questions = 5, .depth = {}});
    for (uint64_t i = 0; i < 200; ++i) {
      expect_answerable(task->example(3, Split::kTrain, i), *task, 5, 1);
      ASSERT_FALSE(HasFatalFailure()) << needles << " " << i;
    }
  }
}

// Computed with Python's integers and a shuffle of whole lists. The sequences must never change
// between versions, because resumed runs would then see other data.
TEST(NeedleTask, TheSequencesNeverChange) {
  const auto sparse = needle_task({.length = 40,
                                   .needles = 3,
                                   .asked = 3,
                                   .questions = 3,
                                   .depth = {},
                                   .keys = 8,
                                   .values = 8,
                                   .noise = 16});
  EXPECT_EQ(
      sparse->example(3, Split::kTrain, 7).ids,
      (std::vector<int64_t>{24, 33, 20, 30, 27, 30, 32, 6,  16, 26, 28, 22, 24, 23, 35, 34, 25,
                            34, 8,  13, 10, 12, 20, 21, 24, 24, 24, 20, 31, 20, 31, 32, 33, 33,
                            29, 24, 32, 22, 35, 33, 1,  10, 12, 1,  6,  16, 1,  8,  13}));
  const auto dense = needle_task({.length = 10,
                                  .needles = 4,
                                  .asked = 4,
                                  .questions = 4,
                                  .depth = {},
                                  .keys = 4,
                                  .values = 8,
                                  .noise = 16});
  EXPECT_EQ(dense->example(3, Split::kValidation, 7).ids,
            (std::vector<int64_t>{5, 11, 6, 11, 20, 23, 7, 10, 4, 8, 1,
                                  5, 11, 1, 6,  11, 1,  4, 8,  1, 7, 10}));
}

TEST(NeedleTask, DepthPlacesTheFirstNeedle) {
  for (const double depth : {0.0, 0.5, 1.0}) {
    const auto task = needle_task({.length = 200, .needles = 6, .depth = depth});
    for (uint64_t i = 0; i < 50; ++i) {
      const TaskSequence sequence = task->example(1, Split::kTrain, i);
      expect_answerable(sequence, *task, 2, 1);
      const double place = static_cast<double>(sequence.questions[0].answer - 1) / 198;
      EXPECT_NEAR(place, depth, 0.03);
    }
  }
}

TEST(NeedleTask, AsksAboutDifferentNeedles) {
  const auto task = needle_task({.needles = 6, .asked = 3, .questions = 3, .depth = {}});
  for (uint64_t i = 0; i < 50; ++i) {
    std::set<int64_t> answers;
    for (const Question& q : task->example(1, Split::kTrain, i).questions) answers.insert(q.answer);
    EXPECT_EQ(answers.size(), 3u);
  }
}

TEST(NeedleTask, EarlierQuestionsDoNotRevealLaterOnes) {
  const auto task = needle_task({.needles = 2, .asked = 2, .questions = 3, .depth = {}});
  int again = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    const TaskSequence sequence = task->example(1, Split::kTrain, i);
    again += sequence.questions[0].answer == sequence.questions[1].answer ? 1 : 0;
  }
  EXPECT_GT(again, 30);
  EXPECT_LT(again, 70);
}

TEST(RecallTask, EveryQuestionHasOnePairAndDistractors) {
  const auto task = recall_task({.pairs = 8, .distractors = 2, .questions = 6});
  for (uint64_t i = 0; i < 200; ++i) {
    const TaskSequence sequence = task->example(5, Split::kTrain, i);
    expect_answerable(sequence, *task, 6, 2);
    ASSERT_FALSE(HasFatalFailure()) << i;
    // Three pairs share the first half of a key.
    const auto& ids = sequence.ids;
    const int64_t half = ids[static_cast<size_t>(sequence.questions[0].asked) - 1];
    EXPECT_EQ(std::count(ids.begin(), ids.begin() + 3 * 24, half), 3);
  }
}

TEST(NoisyText, TheClassHasMostWords) {
  const NoisyTextOptions options{.classes = 5, .length = 40, .signal = 4, .misleading = 3};
  const auto task = noisy_text_task(options);
  std::map<int64_t, int> labels;
  for (uint64_t i = 0; i < 500; ++i) {
    const Example example = task->example(2, Split::kValidation, i);
    ASSERT_EQ(example.source.size(), 40u);
    std::map<int64_t, int> words;
    for (const TokenId id : example.source) {
      const int64_t word = id - kTaskTokens;
      if (word < options.classes * options.words_per_class) ++words[word / options.words_per_class];
    }
    int total = 0;
    for (const auto& [label, count] : words) total += count;
    ASSERT_EQ(words[example.label], 4);
    ASSERT_EQ(total, 7);
    ++labels[example.label];
  }
  for (int64_t label = 0; label < 5; ++label) EXPECT_NEAR(labels[label], 100, 45);
}

TEST(SelectTask, TheSummaryIsTheMarkedSentencesInOrder) {
  const SelectOptions options{.sentences = 5, .selected = 2, .words = 3, .cues = 6};
  const auto task = select_task(options);
  for (uint64_t i = 0; i < 200; ++i) {
    const Example example = task->example(4, Split::kTrain, i);
    ASSERT_EQ(example.source.size(), 25u);
    std::vector<TokenId> expected;
    for (size_t s = 0; s < 5; ++s) {
      const auto begin = example.source.begin() + static_cast<ptrdiff_t>(5 * s);
      if (*begin < kTaskTokens + 3) expected.insert(expected.end(), begin + 1, begin + 5);
    }
    expected.push_back(kTaskEnd);
    ASSERT_EQ(example.target, expected);
    ASSERT_EQ(expected.size(), 9u);
  }
}

TEST(SelectTask, TokensHaveNames) {
  const SelectOptions options{.sentences = 5, .selected = 2, .words = 3, .cues = 6};
  EXPECT_EQ(select_label(kTaskStop, options), ".");
  EXPECT_EQ(select_label(kTaskTokens, options), "KEEP1");
  EXPECT_EQ(select_label(kTaskTokens + 2, options), "KEEP3");
  EXPECT_EQ(select_label(kTaskTokens + 3, options), "skip1");
  EXPECT_EQ(select_label(kTaskTokens + 6, options), "w1");
}

TEST(Tasks, ExamplesDependOnSeedSplitAndIndexAlone) {
  const auto task = needle_task({});
  const auto ids = [&](uint64_t seed, Split split, uint64_t index) {
    return task->example(seed, split, index).ids;
  };
  EXPECT_EQ(ids(1, Split::kTrain, 7), ids(1, Split::kTrain, 7));
  std::set<std::vector<int64_t>> different;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    for (uint64_t index = 0; index < 20; ++index) {
      different.insert(ids(seed, Split::kTrain, index));
      different.insert(ids(seed, Split::kValidation, index));
    }
  }
  EXPECT_EQ(different.size(), 120u);
  const ExampleSet set = noisy_text_task({})->examples(1, Split::kTrain, 10, 4);
  EXPECT_EQ(set.examples.size(), 4u);
  EXPECT_EQ(set.examples[3].source, noisy_text_task({})->example(1, Split::kTrain, 13).source);
}

TEST(Tasks, RowsResumeAndRanksShare) {
  const std::shared_ptr<const SequenceTask> task = needle_task({.length = 32, .depth = {}});
  TaskRows rows(task, Split::kTrain, {.batch_size = 4, .seed = 9});
  rows.next();
  const std::string position = rows.position();
  const RowBatch batch = rows.next();
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 38, 76, 114, 152}));
  TaskRows resumed(task, Split::kTrain, {.batch_size = 4, .seed = 9});
  resumed.seek(position);
  EXPECT_EQ(resumed.next().ids, batch.ids);
  TaskRows second(task, Split::kTrain, {.batch_size = 2, .seed = 9, .rank = 1, .world_size = 2});
  second.seek(position);
  const RowBatch half = second.next();
  EXPECT_TRUE(std::equal(half.ids.begin(), half.ids.begin() + 38, batch.ids.begin() + 38));
  EXPECT_TRUE(std::equal(half.ids.begin() + 38, half.ids.end(), batch.ids.begin() + 3 * 38));
  TaskRows other(task, Split::kValidation, {.batch_size = 4, .seed = 9});
  EXPECT_THROW(other.seek(position), io::Error);
}

TEST(Tasks, OptionsOutOfRangeAreNamed) {
  EXPECT_THROW(needle_task({.length = 7, .needles = 4, .depth = {}}), io::Error);
  EXPECT_THROW(needle_task({.needles = 4, .asked = 5, .depth = {}}), io::Error);
  EXPECT_THROW(needle_task({.depth = 1.5}), io::Error);
  EXPECT_THROW(recall_task({.pairs = 64, .key_parts = 32}), io::Error);
  EXPECT_THROW(noisy_text_task({.signal = 2, .misleading = 2}), io::Error);
  EXPECT_THROW(select_task({.sentences = 2, .selected = 3}), io::Error);
}

}  // namespace
}  // namespace diffattn::data::tasks_test
