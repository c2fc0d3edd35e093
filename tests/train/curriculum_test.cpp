// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "diffattn/train/task_data.h"

namespace diffattn::train::curriculum_test {
namespace {

using torch::Tensor;

RunConfig tiny_run() {
  RunConfig config;
  config.set_all({{"task", "needle"},
                  {"needle.keys", "4"},
                  {"needle.values", "4"},
                  {"needle.noise", "4"},
                  {"train.batch_size", "4"}});
  return config;
}

TEST(Curriculum, ShortHaystacksComeFirst) {
  RunConfig config = tiny_run();
  config.set("needle.length", "40");
  config.set("needle.questions", "1");
  config.set("curriculum.steps", "2");
  config.set("curriculum.length", "17");
  const auto data = open_task_data(config);
  const auto source = data->train_batches();
  EXPECT_EQ(source->next().ids.sizes(), (std::vector<int64_t>{8, 20}));
  const std::string here = source->position();
  const Batch second = source->next();
  EXPECT_EQ(second.ids.size(1), 20);
  EXPECT_EQ(source->next().ids.sizes(), (std::vector<int64_t>{4, 43}));
  source->seek(here);
  EXPECT_TRUE(torch::equal(source->next().ids, second.ids));
  EXPECT_EQ(data->valid_batches()->next().ids.size(1), 43);
}

TEST(Curriculum, HaystacksGrowUntilTheyAreWhole) {
  RunConfig config = tiny_run();
  config.set("needle.length", "100");
  config.set("needle.questions", "2");
  config.set("curriculum.steps", "1");
  config.set("curriculum.length", "20");
  config.set("curriculum.growth_steps", "4");
  const auto source = open_task_data(config)->train_batches();
  std::vector<int64_t> lengths;
  for (int i = 0; i < 6; ++i) lengths.push_back(source->next().ids.size(1) - 6);
  EXPECT_EQ(lengths, (std::vector<int64_t>{20, 40, 40, 80, 80, 100}));
  source->seek(open_task_data(config)->train_batches()->position());
  EXPECT_EQ(source->next().ids.size(1), 26);
}

TEST(Curriculum, ShortHaystacksDoNotDependOnTheProcesses) {
  RunConfig config = tiny_run();
  config.set("needle.length", "40");
  config.set("needle.questions", "1");
  config.set("curriculum.steps", "1");
  config.set("curriculum.length", "30");
  // Five rows of 33 tokens have about as many as four of 43. The processes take them in turn.
  std::vector<Tensor> whole;
  const auto one = open_task_data(config)->train_batches();
  for (int i = 0; i < 2; ++i) whole.push_back(one->next().ids);
  ASSERT_EQ(whole[0].sizes(), (std::vector<int64_t>{5, 33}));
  for (const int64_t processes : {2, 4}) {
    for (int64_t rank = 0; rank < processes; ++rank) {
      config.job = {.rank = rank, .processes = processes};
      const auto source = open_task_data(config)->train_batches();
      for (const Tensor& rows : whole) {
        EXPECT_TRUE(torch::equal(source->next().ids, rows.slice(0, rank, {}, processes)))
            << rank << " of " << processes;
      }
    }
  }
}

TEST(Curriculum, StagesCountUpdatesAlsoWithOtherMicroBatches) {
  RunConfig config = tiny_run();
  config.set("needle.length", "40");
  config.set("needle.questions", "1");
  config.set("curriculum.steps", "3");
  config.set("curriculum.length", "17");
  const auto source = open_task_data(config)->train_batches();
  for (int update = 0; update < 2; ++update) source->next();
  const Tensor third = source->next().ids;
  source->seek(open_task_data(config)->train_batches()->position());
  for (int update = 0; update < 2; ++update) source->next();
  config.set("train.batch_size", "2");
  config.set("train.accumulate", "2");
  const auto halves = open_task_data(config)->train_batches();
  halves->seek(source->position());
  EXPECT_TRUE(torch::equal(torch::cat({halves->next().ids, halves->next().ids}), third));
  EXPECT_EQ(halves->next().ids.sizes(), (std::vector<int64_t>{2, 43}));
}

}  // namespace
}  // namespace diffattn::train::curriculum_test
