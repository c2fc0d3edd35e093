// SPDX-License-Identifier: Apache-2.0
//
// When the trainer clips, logs, evaluates, saves and stops, and what it refuses.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <sstream>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/io/json.h"
#include "diffattn/train/run.h"
#include "diffattn/train/task_data.h"
#include "tests/io/test_files.h"
#include "tests/ops/operator_calls.h"
#include "tests/train/counting_rows.h"
#include "train/checkpoints.h"
#include "train/new_model.h"

namespace diffattn::train::guards_test {
namespace {

namespace fs = std::filesystem;
using io::testing::error_of;
using io::testing::holds;
using io::testing::TempFolder;
using Steps = std::vector<int64_t>;

RunConfig small_run(const std::vector<std::pair<std::string, std::string>>& settings = {}) {
  RunConfig config;
  config.set_all({{"model.hidden_size", "8"},
                  {"model.num_hidden_layers", "1"},
                  {"model.num_attention_heads", "2"},
                  {"model.vocab_size", "13"},
                  {"train.steps", "7"},
                  {"train.seq_len", "8"},
                  {"train.schedule", "constant"},
                  {"train.eval_batches", "1"},
                  {"train.peak_tflops", "1"}});
  config.set_all(settings);
  config.resolve();
  return config;
}

double gradient_norm(Trainer& trainer) {
  double sum = 0;
  for (const auto& parameter : trainer.model()->parameters()) {
    if (parameter.grad().defined()) sum += parameter.grad().square().sum().item<double>();
  }
  return std::sqrt(sum);
}

TEST(Trainer, ClipsGradientsThatAreLongerThanTheLimit) {
  for (const auto& [limit, clipped] :
       {std::pair{"0", false}, std::pair{"1e-3", true}, std::pair{"1e6", false}}) {
    const RunConfig config = small_run({{"train.clip_norm", limit}});
    Trainer trainer(new_model(config), config);
    CountingRows rows;
    const double norm = trainer.step(rows).gradient_norm;
    ASSERT_GT(norm, 1e-2);
    const double want = clipped ? 1e-3 : norm;
    EXPECT_NEAR(gradient_norm(trainer) / want, 1.0, 1e-2) << limit;
  }
}

TEST(Trainer, KeptResultsNeedNoSecondForward) {
  const auto forwards = [](const char* keep) {
    const RunConfig config =
        small_run({{"train.activation_checkpointing", "true"}, {"train.keep_attention", keep}});
    Trainer trainer(new_model(config), config);
    CountingRows rows;
    const diffattn::testing::OperatorCalls calls;
    trainer.step(rows);
    return calls.of("diffattn::attention_forward");
  };
  EXPECT_GT(forwards("results"), 0);
  EXPECT_EQ(forwards("nothing"), 2 * forwards("results"));
}

TEST(Trainer, CountsTheTokensOfBothSidesOfASummary) {
  RunConfig config;
  config.set_all({{"task", "summarize"},
                  {"model.hidden_size", "8"},
                  {"model.num_hidden_layers", "1"},
                  {"model.num_attention_heads", "2"},
                  {"train.batch_size", "2"},
                  {"train.peak_tflops", "1"}});
  const auto data = open_task_data(config);
  Trainer trainer(new_task_model(config, *data), config);
  const auto rows = data->train_batches();
  const std::string here = rows->position();
  const Batch batch = rows->next();
  rows->seek(here);
  ASSERT_GT(batch.target_ids.numel(), 0);
  EXPECT_EQ(trainer.step(*rows).model_tokens, batch.ids.numel() + batch.target_ids.numel());
}

/// The loss of one batch is NaN.
class PoisonedRows : public CountingRows {
 public:
  explicit PoisonedRows(int64_t bad) : bad_(bad) {}
  Batch next() override {
    Batch batch = CountingRows::next();
    if (++taken_ == bad_) batch.mask.mask(torch::full({8, 8}, std::nanf("")));
    return batch;
  }

 private:
  int64_t bad_, taken_ = 0;
};

/// The steps at which a run logged, evaluated and saved.
struct Done {
  Steps logged, evaluated, with_statistics, saved;
  bool has_model = false;
  Outcome outcome = Outcome::kDone;
};

Done train_with(const RunConfig& config, bool validates, int64_t stop_at = -1, int64_t bad = -1) {
  const TempFolder folder;
  train::Run run(folder.path(), config, new_model(config));
  PoisonedRows train(bad);
  CountingRows valid;
  Done done;
  RunEvents events;
  events.on_checkpoint = [&](const std::string& path) {
    done.saved.push_back(*checkpoint_step(fs::path(path).filename()));
  };
  events.stop = [&] { return run.trainer().state.step == stop_at; };
  done.outcome = run.go(train, validates ? &valid : nullptr, events);
  done.has_model = fs::exists(run.model_folder());
  std::istringstream log(io::read_text(folder / "metrics.jsonl", 1 << 20));
  for (std::string line; std::getline(log, line);) {
    const auto json = io::parse_json(line, "metrics.jsonl");
    const io::JsonValue values(json, "metrics.jsonl");
    const int64_t step = values.at("step").to_int();
    if (values.find("learning_rate")) done.logged.push_back(step);
    if (values.find("valid_perplexity")) done.evaluated.push_back(step);
    if (values.find("layer.0.focus")) done.with_statistics.push_back(step);
  }
  return done;
}

TEST(Run, DoesEachThingWhenItIsDueAndAtTheEnd) {
  const auto every = [](const char* log, const char* eval, const char* stats, const char* save) {
    return small_run({{"train.log_every", log},
                      {"train.eval_every", eval},
                      {"train.stats_every", stats},
                      {"train.checkpoint_every", save}});
  };
  const Done all = train_with(every("3", "2", "4", "5"), true);
  EXPECT_EQ(all.logged, (Steps{3, 6, 7}));
  EXPECT_EQ(all.evaluated, (Steps{2, 4, 6, 7}));
  EXPECT_EQ(all.with_statistics, (Steps{4, 7}));
  EXPECT_EQ(all.saved, (Steps{5, 7}));
  EXPECT_TRUE(all.has_model);

  const Done unvalidated = train_with(every("7", "2", "0", "100"), false);
  EXPECT_EQ(unvalidated.logged, (Steps{7}));
  EXPECT_EQ(unvalidated.evaluated, Steps{});
  EXPECT_EQ(unvalidated.with_statistics, Steps{});
  EXPECT_EQ(unvalidated.saved, (Steps{7}));
  EXPECT_TRUE(unvalidated.has_model);

  const Done never = train_with(every("7", "0", "0", "100"), true);
  EXPECT_EQ(never.evaluated, Steps{});
  EXPECT_TRUE(never.has_model);

  const Done stopped = train_with(every("1", "0", "0", "100"), true, /*stop_at=*/2);
  EXPECT_EQ(stopped.outcome, Outcome::kStopped);
  EXPECT_EQ(stopped.logged, (Steps{1, 2}));
  EXPECT_EQ(stopped.saved, (Steps{2}));
  EXPECT_FALSE(stopped.has_model);

  const Done skipped = train_with(every("7", "0", "0", "100"), false, /*stop_at=*/-1, /*bad=*/3);
  EXPECT_EQ(skipped.logged, (Steps{3, 7}));
}

TEST(Run, KeepsTheModelWithTheSmallestValidationLoss) {
  const TempFolder folder;
  const RunConfig config = small_run({{"train.eval_every", "1"}, {"train.learning_rate", "10"}});
  auto run = std::make_unique<train::Run>(folder.path(), config, new_model(config));
  CountingRows train, valid;
  double least = INFINITY;
  std::string kept;
  RunEvents events;
  events.on_evaluation = [&](int64_t, const Evaluation& result, bool best) {
    EXPECT_EQ(best, result.loss() < least);
    least = std::min(least, result.loss());
    const std::string weights = io::read_text(run->model_folder() + "/model.safetensors", 1 << 20);
    EXPECT_EQ(best, weights != kept);
    kept = weights;
  };
  run->go(train, &valid, events);
  EXPECT_EQ(run->trainer().state.best_valid_loss, least);
  run.reset();  // frees the folder
  train::Run resumed(folder.path(), config, new_model(config));
  ASSERT_TRUE(resumed.resume(train));
  EXPECT_EQ(resumed.trainer().state.best_valid_loss, least);
}

TEST(Resume, ACheckpointWithoutThePartOfRank0IsRefused) {
  const TempFolder folder;
  Checkpoints(folder.path(), 2).save(5, 2, [](const std::string& target) {
    io::write_text(target + "/config.json", "{}");
  });
  const RunConfig config = small_run();
  train::Run run(folder.path(), config, new_model(config));
  CountingRows train;
  EXPECT_TRUE(holds(error_of([&] { run.resume(train); }), "rank-00000/state.json"));
}

TEST(Resume, AFolderWithoutCheckpointsStartsAnew) {
  const TempFolder folder;
  const RunConfig config = small_run();
  train::Run run(folder.path(), config, new_model(config));
  CountingRows train;
  EXPECT_FALSE(run.has_checkpoint());
  EXPECT_FALSE(run.resume(train));
  EXPECT_FALSE(run.intact_checkpoint());
}

}  // namespace
}  // namespace diffattn::train::guards_test
