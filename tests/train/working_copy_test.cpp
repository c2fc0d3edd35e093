// SPDX-License-Identifier: Apache-2.0
#include "train/working_copy.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "diffattn/train/trainer.h"
#include "tests/train/counting_rows.h"
#include "train/mixed_precision.h"
#include "train/new_model.h"

namespace diffattn::train::working_copy_test {
namespace {

using torch::Tensor;

RunConfig small_config(const std::string& dtype = "float32", const std::string& device = "cpu") {
  RunConfig config;
  config.set_all({{"model.hidden_size", "32"},
                  {"model.num_hidden_layers", "2"},
                  {"model.num_attention_heads", "4"},
                  {"model.vocab_size", "16"},
                  {"train.steps", "200"},
                  {"train.seq_len", "8"},
                  {"train.learning_rate", "1e-2"},
                  {"train.dtype", dtype},
                  {"train.device", device}});
  config.resolve();
  return config;
}

std::vector<Tensor> copies_of(const torch::nn::Module& model) {
  std::vector<Tensor> copies;
  for (const Tensor& parameter : model.parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

void expect_same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i].cpu(), b[i].cpu())) << i;
}

TEST(WorkingCopy, ShowsRoundedMatricesInsideAScopeOnly) {
  const nn::CausalLM model = new_model(small_config());
  const auto before = copies_of(*model);
  WorkingCopy copies(*model);
  {
    const WorkingCopy::InUse scope(copies);
    const auto inside = model->parameters();
    for (size_t i = 0; i < inside.size(); ++i) {
      const bool matrix = before[i].dim() >= 2;
      EXPECT_EQ(inside[i].scalar_type(), matrix ? torch::kBFloat16 : torch::kFloat32);
      EXPECT_TRUE(torch::equal(inside[i].detach(), before[i].to(inside[i].scalar_type())));
    }
  }
  expect_same_bits(copies_of(*model), before);
}

TEST(WorkingCopy, LaysProjectionsOfOneInputSideBySide) {
  const nn::CausalLM model = new_model(small_config());
  WorkingCopy copies(*model);
  const auto named = model->named_parameters();
  const auto copy = [&](const char* name) {
    return copies.copy_of(named["model.layers.1." + std::string(name)]);
  };
  const auto follows = [](const Tensor& a, const Tensor& b) {
    return b.storage_offset() == a.storage_offset() + a.numel() && b.is_alias_of(a);
  };
  EXPECT_TRUE(follows(copy("self_attn.q_proj.weight"), copy("self_attn.k_proj.weight")));
  EXPECT_TRUE(follows(copy("self_attn.k_proj.weight"), copy("self_attn.v_proj.weight")));
  EXPECT_TRUE(follows(copy("mlp.gate_proj.weight"), copy("mlp.up_proj.weight")));
  EXPECT_FALSE(copies.copy_of(named["model.norm.weight"]).defined());
}

TEST(WorkingCopy, FollowsParametersThatChange) {
  const nn::CausalLM model = new_model(small_config());
  WorkingCopy copies(*model);
  { const WorkingCopy::InUse scope(copies); }
  {
    const torch::NoGradGuard no_grad;
    model->head_weight().mul_(3.0);
  }
  const Tensor changed = model->head_weight().detach().to(torch::kBFloat16);
  const WorkingCopy::InUse scope(copies);
  EXPECT_TRUE(torch::equal(model->head_weight().detach(), changed));
}

TEST(WorkingCopy, SumsGradientsOfMicroBatchesInFloat32) {
  nn::CausalLM model = new_model(small_config());
  WorkingCopy copies(*model);
  CountingRows source;
  Tensor expected;  // gradient of the head, in float64
  for (int i = 0; i < 3; ++i) {
    const Batch batch = source.next();
    const WorkingCopy::InUse scope(copies);
    const MixedPrecision region(torch::kCPU, "bfloat16");
    nn::DecoderInput input;
    input.ids = batch.ids;
    model->logits(input).to(torch::kFloat32).square().mean().backward();
    const Tensor gradient = model->head_weight().grad();
    EXPECT_EQ(gradient.scalar_type(), torch::kBFloat16);
    const Tensor wide = gradient.to(torch::kFloat64);
    expected = expected.defined() ? expected + wide : wide;
    copies.collect_gradients();
    EXPECT_FALSE(model->head_weight().grad().defined());
  }
  copies.deliver_gradients();
  const Tensor sum = model->head_weight().grad();
  ASSERT_EQ(sum.scalar_type(), torch::kFloat32);
  EXPECT_LT((sum - expected).abs().max().item<double>(),
            1e-6 * expected.abs().max().item<double>());
}

/// The loss goes to NaN at one step.
class OneBadStep : public CountingRows {
 public:
  explicit OneBadStep(int64_t bad) : bad_(bad) {}
  Batch next() override {
    Batch batch = CountingRows::next();
    if (++given_ == bad_) batch.mask.mask(torch::full({8, 8}, std::nanf("")));
    return batch;
  }

 private:
  int64_t bad_, given_ = 0;
};

/// Trains 8 steps with `ahead` updates begun before each report.
std::pair<std::vector<StepReport>, std::vector<Tensor>> trained(const RunConfig& config,
                                                                int64_t ahead) {
  Trainer trainer(new_model(config), config);
  OneBadStep source(4);
  std::vector<StepReport> reports;
  for (int i = 0; i < 8; ++i) {
    trainer.begin(source);
    if (trainer.pending() > ahead) reports.push_back(trainer.finish());
  }
  while (trainer.pending() > 0) reports.push_back(trainer.finish());
  return {reports, copies_of(*trainer.model())};
}

void expect_late_reports_change_nothing(const RunConfig& config) {
  const auto [at_once, weights] = trained(config, 0);
  const auto [late, late_weights] = trained(config, 1);
  ASSERT_EQ(at_once.size(), 8u);
  ASSERT_EQ(late.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(at_once[i].step, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(late[i].step, at_once[i].step);
    EXPECT_EQ(late[i].skipped, i == 3);
    EXPECT_EQ(at_once[i].skipped, i == 3);
    EXPECT_EQ(late[i].learning_rate, at_once[i].learning_rate);
    if (i == 3) continue;  // NaN
    EXPECT_EQ(late[i].loss, at_once[i].loss);
    EXPECT_EQ(late[i].gradient_norm, at_once[i].gradient_norm);
  }
  expect_same_bits(weights, late_weights);
}

TEST(Trainer, LateReportsChangeNothing) { expect_late_reports_change_nothing(small_config()); }

class CudaTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }
};

TEST_F(CudaTraining, LateReportsChangeNothing) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    expect_late_reports_change_nothing(small_config(dtype, "cuda"));
  }
}

/// Returns the losses of 100 steps of the same model.
std::vector<double> losses(const RunConfig& config) {
  torch::manual_seed(3);
  Trainer trainer(new_model(config), config);
  CountingRows source;
  std::vector<double> result;
  for (int i = 0; i < 100; ++i) result.push_back(trainer.step(source).loss);
  return result;
}

TEST_F(CudaTraining, FollowsTheCpu) {
  for (const char* accumulate : {"1", "2"}) {
    RunConfig host = small_config(), device = small_config("float32", "cuda");
    RunConfig mixed = small_config("bfloat16", "cuda");
    for (RunConfig* config : {&host, &device, &mixed}) config->set("train.accumulate", accumulate);
    const auto expected = losses(host), wide = losses(device), narrow = losses(mixed);
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_NEAR(wide[i], expected[i], 2e-4 * expected[i]) << i;
      EXPECT_NEAR(narrow[i], expected[i], 5e-2 * expected[i]) << i;
    }
    EXPECT_LT(narrow.back(), 0.5 * narrow.front());
  }
}

}  // namespace
}  // namespace diffattn::train::working_copy_test
