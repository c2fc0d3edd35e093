// SPDX-License-Identifier: Apache-2.0
//
// Bits per byte, and rounded weights and activations.

#include "train/tasks/evaluator.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "diffattn/io/tokenizer_training.h"
#include "diffattn/train/task_data.h"
#include "train/tasks/round_weights.h"

namespace diffattn::train {
namespace {

RunConfig tiny_task() {
  RunConfig config;
  config.set_all({{"task", "needle"},
                  {"model.hidden_size", "16"},
                  {"model.num_hidden_layers", "1"},
                  {"model.num_attention_heads", "2"},
                  {"model.initializer_range", "0.5"},
                  {"needle.length", "12"},
                  {"needle.keys", "4"},
                  {"needle.values", "4"},
                  {"needle.noise", "4"},
                  {"train.batch_size", "4"}});
  return config;
}

TEST(Evaluator, TokensStandForTheBytesOfTheirText) {
  const io::Tokenizer bytes = io::Tokenizer::bytes();
  const torch::Tensor each = token_bytes(bytes);
  EXPECT_EQ(each.numel(), 257);
  EXPECT_EQ(each.slice(0, 0, 256).eq(1).sum().item<int64_t>(), 256);
  EXPECT_EQ(each[256].item<int64_t>(), 0);  // the end of a text
  io::TrainingOptions options;
  options.vocab_size = 300;
  io::TokenizerTrainer trainer(options);
  const std::string text = "the needle and the hay, the needle in the hay; ünïcödé";
  trainer.add_text(text);
  const io::Tokenizer learnt = trainer.train();
  const torch::Tensor lengths = token_bytes(learnt);
  int64_t sum = 0;
  for (const io::TokenId id : learnt.encode(text)) sum += lengths[id].item<int64_t>();
  EXPECT_EQ(sum, static_cast<int64_t>(text.size()));
}

TEST(Evaluator, BitsPerByteCountTheBytesOfTheLabels) {
  RunConfig config = tiny_task();
  const auto data = open_task_data(config);
  const auto model = new_task_model(config, *data);
  const Batch batch = data->valid_batches()->next();
  Evaluator evaluator(*model, "float32", 0);
  EXPECT_TRUE(std::isnan(evaluator.bits_per_byte()));
  evaluator.count_bytes(torch::full({config.model.vocab_size}, 3, torch::kLong));
  evaluator.add(batch);
  EXPECT_EQ(evaluator.bytes(), 3 * evaluator.total().tokens);
  EXPECT_NEAR(evaluator.bits_per_byte(), evaluator.total().loss() / std::log(2.0) / 3, 1e-9);
}

void expect_rounded_matrices(const char* attention) {
  RunConfig config = tiny_task();
  config.set("model.attention", attention);
  const auto data = open_task_data(config);
  const auto exact = new_task_model(config, *data), rounded = new_task_model(config, *data);
  int64_t expected = 0;
  EXPECT_GT(round_weights(*rounded->module(), 4), 0);
  for (const auto& parameter : exact->module()->named_parameters()) {
    const torch::Tensor& before = parameter.value();
    const torch::Tensor after = *rounded->module()->named_parameters().find(parameter.key());
    if (before.dim() != 2 || parameter.key().find("layers.") == std::string::npos ||
        parameter.key().find("lambda") != std::string::npos) {
      EXPECT_TRUE(torch::equal(before, after)) << parameter.key();
      continue;
    }
    ++expected;
    const torch::Tensor scale = before.abs().amax(1, true) / 7;
    const torch::Tensor steps = after / scale;
    EXPECT_LT((steps - steps.round()).abs().max().item<double>(), 1e-3) << parameter.key();
    EXPECT_LE(((after - before).abs() / scale).max().item<double>(), 0.5001) << parameter.key();
    EXPECT_NEAR(steps.abs().max().item<double>(), 7, 1e-3) << parameter.key();
  }
  EXPECT_EQ(round_weights(*rounded->module(), 4), expected);
}

TEST(RoundWeights, RoundsTheMatricesOfLayersByChannel) {
  for (const char* attention : {"diffllama", "microsoft_v2"}) expect_rounded_matrices(attention);
}

TEST(Evaluator, RoundsTheInputsOfMatricesInItsOwnBatchesOnly) {
  for (const char* attention : {"diffllama", "microsoft_v2", "transformer"}) {
    RunConfig config = tiny_task();
    config.set("model.attention", attention);
    const auto data = open_task_data(config);
    const auto model = new_task_model(config, *data);
    const Batch batch = data->valid_batches()->next();
    const auto loss_with = [&](int64_t bits) {
      Evaluator evaluator(*model, "float32", 0);
      evaluator.round_activations(bits);
      evaluator.add(batch);
      return evaluator.total().loss();
    };
    const double exact = loss_with(0), fine = loss_with(8), coarse = loss_with(3);
    EXPECT_NE(fine, exact) << attention;
    EXPECT_LT(std::abs(fine - exact), 0.1) << attention;
    EXPECT_LT(std::abs(fine - exact), std::abs(coarse - exact)) << attention;
    EXPECT_EQ(loss_with(0), exact) << attention;
  }
}

}  // namespace
}  // namespace diffattn::train
