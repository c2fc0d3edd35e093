// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/io/json.h"
#include "diffattn/models/model_folder.h"
#include "diffattn/train/run.h"
#include "tests/io/test_files.h"
#include "train/flops.h"
#include "train/new_model.h"

namespace diffattn::train::run_test {
namespace {

using io::testing::TempFolder;
using torch::Tensor;

/// Generates counting sequences (a, a+1, ... mod 13). Its state is one number.
class Counting : public BatchSource {
 public:
  explicit Counting(uint64_t seed) : state_(seed) {}
  Batch next() override {
    std::vector<Tensor> rows;
    for (int i = 0; i < 4; ++i) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      rows.push_back((torch::arange(17) + static_cast<int64_t>(state_ >> 60)).remainder(13));
    }
    const Tensor all = torch::stack(rows);
    return {all.slice(1, 0, 16).contiguous(), all.slice(1, 1).contiguous(), {}, {}};
  }
  std::string position() const override { return std::to_string(state_); }
  void seek(const std::string& position) override { state_ = std::stoull(position); }

 private:
  uint64_t state_;
};

/// Generates the same sequences, but from a certain batch on the loss is NaN.
class Poisoned : public Counting {
 public:
  Poisoned(uint64_t seed, int64_t good) : Counting(seed), good_(good) {}
  Batch next() override {
    Batch batch = Counting::next();
    if (good_-- <= 0) batch.mask.mask(torch::full({16, 16}, std::nanf("")));
    return batch;
  }

 private:
  int64_t good_;
};

RunConfig small_run(int64_t steps) {
  RunConfig config;
  config.set_all({{"model.hidden_size", "16"},
                  {"model.num_hidden_layers", "2"},
                  {"model.num_attention_heads", "2"},
                  {"model.vocab_size", "13"},
                  {"train.steps", std::to_string(steps)},
                  {"train.seq_len", "16"},
                  {"train.warmup_steps", "1"},
                  {"train.learning_rate", "1e-2"},
                  {"train.log_every", "1"},
                  {"train.eval_every", "4"},
                  {"train.eval_batches", "2"},
                  {"train.checkpoint_every", "3"}});
  config.resolve();
  return config;
}

TEST(Run, LearnsToCount) {
  const TempFolder folder;
  const RunConfig config = small_run(60);
  train::Run run(folder.path(), config, new_model(config));
  Counting train(1), valid(2);
  double first = 0, last = 0;
  RunEvents events;
  events.on_step = [&](const StepReport& report, const TrainingState&) {
    (report.step == 1 ? first : last) = report.loss;
  };
  EXPECT_EQ(run.go(train, &valid, events), Outcome::kDone);
  EXPECT_GT(first, 2.0);
  EXPECT_LT(last, 0.3 * first);
  EXPECT_NO_THROW(models::load_causal_lm(run.model_folder()));
}

TEST(Run, StoppedAndResumedRunsEndInTheSameBits) {
  const RunConfig config = small_run(12);
  const TempFolder whole;
  {
    Counting train(1), valid(2);
    train::Run run(whole.path(), config, new_model(config));
    EXPECT_EQ(run.go(train, &valid), Outcome::kDone);
  }
  for (const int64_t stop_at : {1, 4, 7}) {
    const TempFolder parts;
    {
      Counting train(1), valid(2);
      train::Run run(parts.path(), config, new_model(config));
      RunEvents events;
      events.stop = [&] { return run.trainer().state.step == stop_at; };
      EXPECT_EQ(run.go(train, &valid, events), Outcome::kStopped);
    }
    Counting train(99), valid(2);
    train::Run run(parts.path(), config, new_model(small_run(12)));
    ASSERT_TRUE(run.resume(train));
    EXPECT_EQ(run.trainer().state.step, stop_at);
    EXPECT_EQ(run.go(train, &valid), Outcome::kDone);
    for (const char* file :
         {"/checkpoints/step-12/model.safetensors",
          "/checkpoints/step-12/rank-00000/optimizer.safetensors",
          "/checkpoints/step-12/rank-00000/state.json", "/model/model.safetensors"}) {
      EXPECT_EQ(io::read_text(whole.path() + file, 1 << 24),
                io::read_text(parts.path() + file, 1 << 24))
          << file << " stopped at " << stop_at;
    }
  }
}

TEST(Run, NeverUpdatesFromANonFiniteStep) {
  const TempFolder folder;
  RunConfig config = small_run(40);
  config.set("train.max_skipped_steps", "3");
  train::Run run(folder.path(), config, new_model(config));
  Poisoned train(1, /*good=*/5);
  std::vector<bool> skipped;
  RunEvents events;
  events.on_step = [&](const StepReport& report, const TrainingState&) {
    skipped.push_back(report.skipped);
  };
  EXPECT_EQ(run.go(train, nullptr, events), Outcome::kNonFinite);
  EXPECT_EQ(skipped, (std::vector<bool>{false, false, false, false, false, true, true, true}));
  EXPECT_EQ(run.trainer().state.skipped, 3);
  for (const auto& parameter : run.trainer().model()->parameters()) {
    EXPECT_TRUE(torch::isfinite(parameter).all().item<bool>());
  }
  Counting again(1);
  EXPECT_TRUE(run.resume(again));  // the checkpoint is intact
}

TEST(Run, AccumulatedMicroBatchesEqualOneLargeBatch) {
  RunConfig config = small_run(1);
  config.set("train.accumulate", "3");
  const TempFolder folder;
  train::Run run(folder.path(), config, new_model(config));
  Counting micro(7);
  run.trainer().step(micro);

  class Joined : public Counting {
   public:
    using Counting::Counting;
    Batch next() override {
      std::vector<Tensor> ids, labels;
      for (int i = 0; i < 3; ++i) {
        const Batch batch = Counting::next();
        ids.push_back(batch.ids);
        labels.push_back(batch.labels);
      }
      return {torch::cat(ids), torch::cat(labels), {}, {}};
    }
  };
  Trainer large(new_model(config), small_run(1));
  Joined joined(7);
  large.step(joined);
  const auto expected = models::named_weights(*large.model());
  const auto actual = models::named_weights(*run.trainer().model());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT((expected[i].second - actual[i].second).abs().max().item<double>(), 2e-5)
        << expected[i].first;
  }
}

TEST(Run, MixedPrecisionAndRecomputationLearnToo) {
  for (const char* recompute : {"false", "true"}) {
    RunConfig config = small_run(40);
    config.set("train.dtype", "bfloat16");
    config.set("train.activation_checkpointing", recompute);
    Trainer trainer(new_model(config), config);
    Counting source(3);
    const double first = trainer.step(source).loss;
    double last = 0;
    for (int i = 1; i < 40; ++i) last = trainer.step(source).loss;
    EXPECT_LT(last, 0.5 * first);
    for (const auto& parameter : trainer.model()->parameters()) {
      EXPECT_EQ(parameter.scalar_type(), torch::kFloat32);
    }
  }
}

TEST(Run, LogsStatisticsOfEveryLayer) {
  const TempFolder folder;
  RunConfig config = small_run(4);
  config.set("train.stats_every", "2");
  train::Run run(folder.path(), config, new_model(config));
  Counting train(1), valid(2);
  run.go(train, &valid);
  const std::string log = io::read_text(folder / "metrics.jsonl", 1 << 20);
  for (const char* name : {"layer.0.lambda", "layer.1.focus", "layer.1.noise_cancelled",
                           "valid_loss", "tokens_per_second"}) {
    EXPECT_NE(log.find(name), std::string::npos) << name;
  }
}

TEST(Run, AttentionPenaltyChangesTheLossOnlyWhenAskedFor) {
  RunConfig config = small_run(2);
  Trainer plain(new_model(config), config);
  config.set("train.focus_weight", "0.5");
  Trainer penalized(new_model(config), config);
  Counting a(4), b(4);
  const double without = plain.step(a).loss, with = penalized.step(b).loss;
  EXPECT_GT(with, without);
  EXPECT_LT(with, without + 0.5);
}

TEST(Run, LambdaWarmsUpFromZero) {
  RunConfig config = small_run(8);
  config.set("train.lambda_warmup_steps", "4");
  config.set("train.learning_rate", "0");
  nn::CausalLM model = new_model(config);
  const auto lambda = [&] {
    const torch::NoGradGuard no_grad;
    std::vector<nn::AttentionTrace> traces;
    nn::DecoderInput input;
    input.ids = torch::arange(5).unsqueeze(0);
    input.traces = &traces;
    model->forward(input);
    return traces[1].calls[0].lambda.item<double>();
  };
  const double full = lambda();
  Trainer trainer(model, config);
  Counting source(3);
  for (const double factor : {0.0, 0.25, 0.5, 0.75, 1.0, 1.0}) {
    trainer.step(source);
    EXPECT_NEAR(lambda(), factor * full, 1e-6);
  }
}

TEST(Run, LambdaWarmUpEndsBeforeTheRun) {
  RunConfig config = small_run(8);
  config.set("train.lambda_warmup_steps", "8");
  EXPECT_THROW(config.resolve(), ConfigError);
}

TEST(FlopCounter, CountsMatricesAndVisiblePairs) {
  const RunConfig config = small_run(1);
  const nn::CausalLM model = new_model(config);
  const nn::ModelConfig& c = model->config;
  const FlopCounter counter(*model, c);
  const double matrices = 2.0 * (4 * 16 * 16 + 3 * 16 * double(c.intermediate_size)) + 13 * 16;
  Batch rows, packed;
  rows.ids = torch::zeros({4, 16}, torch::kLong);
  packed.ids = torch::zeros({64}, torch::kLong);
  packed.mask.cu_seqlens_q(torch::tensor({0, 60, 64}, torch::kInt));
  EXPECT_DOUBLE_EQ(counter.training(rows), 6 * matrices * 64 + 2 * 12 * 16 * (4.0 * 16 * 17 / 2));
  EXPECT_DOUBLE_EQ(counter.training(packed),
                   6 * matrices * 64 + 2 * 12 * 16 * (60.0 * 61 / 2 + 4.0 * 5 / 2));
  Trainer trainer(model, config);
  Counting source(3);
  const StepReport report = trainer.step(source);
  EXPECT_GT(report.utilisation, 0.0);
  EXPECT_LT(report.utilisation, 1.0);
  EXPECT_EQ(report.model_tokens, source.next().ids.numel());
}

TEST(FlopCounter, TheEstimateFromSizesIsThatOfFullRows) {
  const RunConfig config = small_run(1);
  const nn::CausalLM model = new_model(config);
  Batch batch;
  batch.ids = torch::zeros({config.train.batch_size, config.train.seq_len}, torch::kLong);
  const double counted =
      FlopCounter(*model, model->config).training(batch) * double(config.train.accumulate);
  EXPECT_NEAR(estimate_update_flops(config, language_model(model)->parameter_count()) / counted,
              1.0, 0.05);
}

}  // namespace
}  // namespace diffattn::train::run_test
