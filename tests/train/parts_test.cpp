// SPDX-License-Identifier: Apache-2.0
//
// Unit tests of schedule, optimiser, config, checkpoints and event files.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <set>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"
#include "diffattn/train/adamw.h"
#include "diffattn/train/run_config.h"
#include "io/settings.h"
#include "tests/io/test_files.h"
#include "train/event_file.h"
#include "train/metrics_log.h"
#include "train/schedule.h"

namespace diffattn::train::parts_test {
namespace {

using TemporaryFolder = io::testing::TempFolder;
using torch::Tensor;

TEST(Schedule, WarmsUpThenFalls) {
  Schedule s{.peak = 1.0, .final_fraction = 0.1, .warmup_steps = 4, .steps = 15};
  EXPECT_DOUBLE_EQ(s.at(0), 0.25);
  EXPECT_DOUBLE_EQ(s.at(3), 1.0);
  EXPECT_DOUBLE_EQ(s.at(4), 1.0);
  EXPECT_NEAR(s.at(9), 0.55, 1e-12);  // half way down a cosine
  EXPECT_NEAR(s.at(14), 0.1, 1e-12);
  s.decay = Decay::kLinear;
  EXPECT_NEAR(s.at(9), 0.55, 1e-12);
  EXPECT_NEAR(s.at(5), 0.91, 1e-12);
  s.decay = Decay::kConstant;
  EXPECT_DOUBLE_EQ(s.at(14), 1.0);
  EXPECT_THROW(decay_from_name("step"), diffattn::Error);
}

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    a = register_module("a", torch::nn::Linear(6, 5));
    norm = register_parameter("norm", torch::ones({5}));
    lambda_proj = register_parameter("lambda_proj", torch::randn({3, 5}));
  }
  Tensor forward(const Tensor& x) {
    return torch::matmul(torch::tanh(a(x)) * norm, lambda_proj.t());
  }
  torch::nn::Linear a{nullptr};
  Tensor norm, lambda_proj;
};

TEST(AdamW, EqualsTorchsWithItsGroups) {
  torch::manual_seed(1);
  TwoLayersImpl ours;
  torch::manual_seed(1);
  TwoLayersImpl theirs;
  const AdamWOptions options{.weight_decay = 0.3};
  AdamW optimizer(ours, options);
  const auto group = [&](std::vector<Tensor> parameters, double decay) {
    return torch::optim::OptimizerParamGroup(
        std::move(parameters),
        std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.01)
                                                         .betas({options.beta1, options.beta2})
                                                         .eps(options.eps)
                                                         .weight_decay(decay)));
  };
  torch::optim::AdamW reference({group({theirs.a->weight}, 0.3),
                                 group({theirs.a->bias, theirs.norm, theirs.lambda_proj}, 0.0)},
                                torch::optim::AdamWOptions(0.01));
  for (int step = 0; step < 20; ++step) {
    const Tensor x = torch::randn({4, 6});
    optimizer.zero_grad();
    reference.zero_grad();
    ours.forward(x).square().mean().backward();
    theirs.forward(x).square().mean().backward();
    optimizer.step(0.01);
    reference.step();
  }
  const auto expected = theirs.named_parameters();
  for (const auto& item : ours.named_parameters()) {
    EXPECT_LT((item.value() - expected[item.key()]).abs().max().item<double>(), 1e-6) << item.key();
  }
}

TEST(AdamW, ClipsToTheNormAndLeavesSmallGradients) {
  TwoLayersImpl model;
  AdamW optimizer(model, {});
  model.forward(torch::randn({4, 6})).square().sum().backward();
  const Tensor norm = optimizer.gradient_norm();
  double sum = 0;
  for (const auto& p : model.parameters()) sum += p.grad().square().sum().item<double>();
  EXPECT_NEAR(norm.item<double>(), std::sqrt(sum), 1e-4 * std::sqrt(sum));
  optimizer.clip_gradients(norm, norm.item<double>() / 4);
  EXPECT_NEAR(optimizer.gradient_norm().item<double>(), norm.item<double>() / 4,
              1e-4 * norm.item<double>());
  const Tensor before = model.norm.grad().clone();
  optimizer.clip_gradients(optimizer.gradient_norm(), 1e9);
  EXPECT_TRUE(torch::equal(before, model.norm.grad()));
}

TEST(RunConfig, SetsAndRefuses) {
  RunConfig config;
  config.set("train.steps", "1_000");
  config.set("model.tie_word_embeddings", "true");
  config.set("train.learning_rate", "3e-4");
  EXPECT_EQ(config.train.steps, 1000);
  EXPECT_TRUE(config.model.tie_word_embeddings);
  EXPECT_DOUBLE_EQ(config.train.learning_rate, 3e-4);
  const auto message = [&](const std::string& key, const std::string& value) {
    try {
      config.set(key, value);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(message("train.step", "5"), "train.step: no such key; the nearest is train.steps");
  EXPECT_EQ(message("model.foo", "5"), "model.foo: no such key");
  EXPECT_EQ(message("train.abc", "5"), "train.abc: no such key");
  EXPECT_EQ(message("x", "5"), "x: no such key");
  EXPECT_EQ(message("sed", "5"), "sed: no such key; the nearest is seed");
  EXPECT_EQ(message("trian.step", "5"), "trian.step: no such key; the nearest is train.steps");
  EXPECT_EQ(message("train.stpes", "5"), "train.stpes: no such key; the nearest is train.steps");
  EXPECT_EQ(message("model.steps", "5"), "model.steps: no such key; the nearest is train.steps");
  EXPECT_EQ(message("needle.value", "5"),
            "needle.value: no such key; the nearest is needle.values");
  EXPECT_EQ(message("recall.value", "5"),
            "recall.value: no such key; the nearest is recall.values");
  EXPECT_EQ(
      message("model.attention", "dance"),
      "model.attention: expected one of microsoft_v1, microsoft_v2, diffllama, phi4_flash, "
      "motif_2_6b, motif_2_12_7b, dint, introspective, temperature, transformer, got 'dance'");
  EXPECT_EQ(message("train.steps", "ten"),
            "train.steps: expected an integer in [1, 1099511627776], got 'ten'");
  EXPECT_NE(message("train.steps", "0").find("[1,"), std::string::npos);
  EXPECT_NE(message("train.learning_rate", "nan").find("a number"), std::string::npos);
  EXPECT_EQ(message("train.schedule", "exp"),
            "train.schedule: expected one of cosine, linear, constant, got 'exp'");
  EXPECT_NE(message("model.tie_word_embeddings", "1").find("true or false"), std::string::npos);
  EXPECT_EQ(message("data.train", "a\x1b[0m"),
            "data.train: expected text, got the control character 0x1b at byte 1");
}

TEST(RunConfig, TextsComeBackFromRunFiles) {
  const std::string odd = "a \"b\" \\n c\nd\te\rf = 'g' # \xc3\xa9";
  RunConfig config, again;
  config.set("data.train", odd);
  for (const io::Setting& setting : io::parse_settings(config.to_toml(), "config.toml")) {
    again.set(setting);
  }
  EXPECT_EQ(again.data.train, odd);
  EXPECT_EQ(again.to_toml(), config.to_toml());
}

TEST(RunConfig, RunFilesKeepTypesApart) {
  const auto message = [](const std::string& text) {
    RunConfig config;
    try {
      for (const auto& setting : io::parse_settings(text, "run.toml")) config.set(setting);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(message("train.steps = \"10\""),
            "train.steps: expected an integer, got the string \"10\"");
  EXPECT_EQ(message("train.eps = '1e-8'"), "train.eps: expected a number, got the string \"1e-8\"");
  EXPECT_EQ(message("model.head_norm = \"true\""),
            "model.head_norm: expected true or false, got the string \"true\"");
  EXPECT_EQ(message("data.train = 5"), "data.train: expected a string in quotes, got 5");
  EXPECT_EQ(message("task = true"), "task: expected a string in quotes, got true");
  EXPECT_EQ(message("train.steps = true"),
            "train.steps: expected an integer in [1, 1099511627776], got 'true'");
  EXPECT_EQ(message("model.head_norm = 1"), "model.head_norm: expected true or false, got '1'");
  EXPECT_EQ(message("train.steps = +1_0\ntrain.eps = 1"), "nothing was thrown");
  // Every key accepts its own type and refuses the other one.
  for (const char* task : {"lm", "needle", "recall", "classify", "summarize"}) {
    RunConfig config;
    config.set_all({{"task", task}, {"curriculum.steps", "1"}});
    for (io::Setting setting : io::parse_settings(config.to_toml(), "config.toml")) {
      EXPECT_NO_THROW(config.set(setting));
      setting.is_string = !setting.is_string;
      EXPECT_THROW(config.set(setting), ConfigError) << setting.key;
    }
  }
}

TEST(RunConfig, RunFilesHoldWhatTheRunReads) {
  const auto sections = [](std::vector<std::pair<std::string, std::string>> settings) {
    RunConfig config;
    config.set_all(settings);
    std::set<std::string> found;
    for (const auto& setting : io::parse_settings(config.to_toml(), "config.toml")) {
      const size_t dot = setting.key.find('.');
      if (dot != std::string::npos) found.insert(setting.key.substr(0, dot));
    }
    return found;
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(sections({}), (Names{"model", "data", "train"}));
  EXPECT_EQ(sections({{"task", "needle"}}), (Names{"model", "needle", "train"}));
  EXPECT_EQ(sections({{"task", "needle"}, {"curriculum.steps", "3"}}),
            (Names{"model", "needle", "curriculum", "train"}));
  EXPECT_EQ(sections({{"task", "summarize"}}), (Names{"model", "summarize", "train"}));
  RunConfig config;
  config.set("task", "classify");
  EXPECT_NE(config.to_toml().find("\nsignal = "), std::string::npos);
  EXPECT_EQ(config.to_toml().find("\nclass_weights = "), std::string::npos);
  EXPECT_TRUE(config.reads("classify.signal"));
  EXPECT_FALSE(config.reads("classify.class_weights"));
  EXPECT_FALSE(config.reads("needle.length"));
  EXPECT_THROW(config.reads("classify.dance"), ConfigError);
  config.set("data.train", "texts.jsonl");
  EXPECT_EQ(config.to_toml().find("\nsignal = "), std::string::npos);
  EXPECT_NE(config.to_toml().find("\nclass_weights = "), std::string::npos);
}

TEST(RunConfig, NamesTheKeysOfContradictingTaskOptions) {
  const auto message = [](std::vector<std::pair<std::string, std::string>> settings) {
    RunConfig config;
    config.set_all(settings);
    try {
      config.resolve();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(message({{"train.seq_len", "64"}, {"model.max_position_embeddings", "63"}}),
            "model.max_position_embeddings: expected at least the 64 tokens of a row, got 63");
  EXPECT_EQ(message({{"train.seq_len", "64"}, {"model.max_position_embeddings", "64"}}),
            "nothing was thrown");
  EXPECT_TRUE(message({{"task", "needle"}, {"needle.needles", "5000"}, {"needle.length", "100"}})
                  .starts_with("needle.length: expected a number in [10000, "));
  EXPECT_TRUE(message({{"task", "needle"},
                       {"needle.needles", "4"},
                       {"needle.length", "100"},
                       {"curriculum.steps", "1"},
                       {"curriculum.length", "2"}})
                  .starts_with("curriculum.length: expected a number in [8, "));
  const auto longer = [&](const std::string& steps) {
    return message({{"task", "needle"},
                    {"needle.length", "100"},
                    {"curriculum.steps", steps},
                    {"curriculum.length", "101"}});
  };
  EXPECT_EQ(longer("1"), "curriculum.length: expected at most needle.length = 100, got 101");
  EXPECT_EQ(longer("0"), "nothing was thrown");
}

TEST(RunConfig, ResolvesSizesAndNamesContradictions) {
  RunConfig config;
  config.model.hidden_size = 96;
  config.model.num_attention_heads = 4;
  config.resolve();
  EXPECT_EQ(config.model.head_dim, 24);
  EXPECT_EQ(config.model.num_key_value_heads, 4);
  EXPECT_EQ(config.model.intermediate_size, 256);
  RunConfig odd;
  odd.model.hidden_size = 100;
  odd.model.num_attention_heads = 3;
  EXPECT_THROW(odd.resolve(), ConfigError);
  RunConfig groups;
  groups.model.num_key_value_heads = 3;
  EXPECT_THROW(groups.resolve(), ConfigError);
}

TEST(EventFile, HasTheFormatsCheckSum) { EXPECT_EQ(crc32c("123456789"), 0xe3069283u); }

TEST(MetricsLog, GroupsTensorBoardTags) {
  EXPECT_EQ(event_tag("loss"), "train/loss");
  EXPECT_EQ(event_tag("valid_loss"), "valid/loss");
  EXPECT_EQ(event_tag("tokens_per_second"), "speed/tokens_per_second");
  EXPECT_EQ(event_tag("layer.12.lambda"), "lambda/layer.12");
  EXPECT_EQ(event_tag("layer.0.negative_mass"), "negative_mass/layer.0");
  EXPECT_EQ(event_tag("focus"), "attention/focus");
}

TEST(MetricsLog, RemovesStepsThatAResumedRunRepeats) {
  const TemporaryFolder folder;
  {
    MetricsLog log(folder.path(), 0);
    for (const int64_t step : {1, 2, 3})
      log.write(step, {{"loss", 1.0 / static_cast<double>(step)}});
    log.write(4, {{"loss", std::numeric_limits<double>::quiet_NaN()}});
  }
  std::ofstream(folder.path() + "/metrics.jsonl", std::ios::app)
      << "garbage\n\xff\n[1]\n{\"step\": \"x\"}\n{\"step\": 5, \"lo";
  {
    MetricsLog log(folder.path(), 2);
    log.write(3, {{"loss", 7.0}});
  }
  EXPECT_EQ(
      io::read_text(folder.path() + "/metrics.jsonl", 1000),
      "{\"step\": 1, \"loss\": 1}\n{\"step\": 2, \"loss\": 0.5}\n{\"step\": 3, \"loss\": 7}\n");
}

}  // namespace
}  // namespace diffattn::train::parts_test
