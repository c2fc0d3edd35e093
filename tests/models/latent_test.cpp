// SPDX-License-Identifier: Apache-2.0
//
// Motif-3's grouped differential latent attention against a recording, its two forms against each
// other, and its cached steps against the full pass, on every CPU backend of this machine and on
// its GPU.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "diffattn/error.h"
#include "diffattn/nn/latent_attention.h"
#include "tests/ops/backends.h"
#include "tests/ops/golden.h"

namespace diffattn::latent_test {
namespace {

using testing::GoldenFile;
using torch::Tensor;

const std::string kFolder = std::string(DIFFATTN_TEST_DATA) + "/published/motif3_gdla_a";

double distance(const Tensor& a, const Tensor& b) {
  return (a.cpu() - b.cpu()).abs().max().item<double>();
}

/// The sizes in the recording's config.json. Layer 0 sees every token, layer 1 slides.
nn::LatentAttentionOptions recorded_options(int64_t layer) {
  auto options = nn::LatentAttentionOptions(64, 10)
                     .num_key_value_heads(2)
                     .num_noise_heads(2)
                     .head_dim(24)
                     .qk_rope_head_dim(8)
                     .v_head_dim(16)
                     .q_lora_rank(32)
                     .kv_lora_rank(24);
  if (layer == 1) return options.sliding_window(7).rope_theta(5000.0);
  return options.rope_theta(10000.0)
      .yarn(nn::YarnOptions().factor(8.0).original_max_position_embeddings(64))
      .scale_factor(nn::yarn_scale_factor(1.0, 8.0));
}

nn::LatentDiffAttention recorded_layer(int64_t layer, nn::LatentForm form, torch::Device device) {
  nn::LatentDiffAttention attention(recorded_options(layer).form(form));
  const GoldenFile weights = testing::read_golden(kFolder + "/model.safetensors");
  const torch::NoGradGuard no_grad;
  for (auto& item : attention->named_parameters()) {
    const std::string name = c10::str("model.layers.", layer, ".self_attn.", item.key());
    EXPECT_EQ(item.value().sizes(), weights.tensors.at(name).sizes()) << name;
    item.value().copy_(weights.tensors.at(name));
  }
  attention->to(device);
  return attention;
}

class LatentAttentionAt : public testing::AtPlace,
                          public ::testing::WithParamInterface<testing::Place> {
 protected:
  const testing::Place& place() const override { return GetParam(); }
};

TEST_P(LatentAttentionAt, OutputsAndGradientsAsRecordedInBothForms) {
  const GoldenFile recorded = testing::read_golden(kFolder + "/io.safetensors");
  const torch::Device device = place().device();
  const auto at = [&](const std::string& name) { return recorded.tensors.at(name).to(device); };
  const Tensor mask = at("attention_mask"), real = mask.to(torch::kBool);
  for (const auto form : {nn::LatentForm::kExpanded, nn::LatentForm::kAbsorbed}) {
    const Tensor x = at("x").clone().requires_grad_();
    Tensor loss = torch::zeros({}, x.options().requires_grad(false));
    std::vector<nn::LatentDiffAttention> layers;
    for (int64_t i = 0; i < 2; ++i) {
      layers.push_back(recorded_layer(i, form, device));
      nn::AttentionInput input{.x = x, .positions = (mask.cumsum(1) - 1).clamp_min(0)};
      input.mask.key_starts(mask.size(1) - mask.sum(1));
      const Tensor out = layers.back()->forward(input);
      const Tensor expected = at("out." + std::to_string(i));
      EXPECT_LE(distance(out.index({real}), expected.index({real})), 1e-4) << i;
      const Tensor probe = at("probe." + std::to_string(i));
      loss = loss + (out * probe * mask.unsqueeze(-1)).sum() / mask.sum();
    }
    EXPECT_NEAR(loss.item<double>(), recorded.tensors.at("loss").item<double>(), 1e-4);
    loss.backward();
    const auto expect_gradient = [&](const Tensor& actual, const std::string& name) {
      const Tensor expected = recorded.tensors.at("grad." + name);
      EXPECT_LE(distance(actual, expected), 2e-4 * expected.abs().max().item<double>()) << name;
    };
    expect_gradient(x.grad() * mask.unsqueeze(-1), "x");
    for (int64_t i = 0; i < 2; ++i) {
      for (const auto& item : layers[static_cast<size_t>(i)]->named_parameters()) {
        expect_gradient(item.value().grad(),
                        c10::str("model.layers.", i, ".self_attn.", item.key()));
      }
    }
  }
}

TEST_P(LatentAttentionAt, CachedStepsEqualTheFullPassInBothForms) {
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  const torch::Device device = place().device();
  const Tensor x = torch::randn({2, 30, 64}).to(device);
  for (int64_t i = 0; i < 2; ++i) {
    const Tensor full = recorded_layer(i, nn::LatentForm::kExpanded, device)->forward({.x = x});
    for (const auto form :
         {nn::LatentForm::kAuto, nn::LatentForm::kExpanded, nn::LatentForm::kAbsorbed}) {
      nn::LatentDiffAttention layer = recorded_layer(i, form, device);
      nn::KvCache cache;
      for (int64_t begin = 0; begin < 30;) {
        const int64_t end = begin == 0 ? 12 : begin + 1;
        nn::AttentionInput input{.x = x.slice(1, begin, end)};
        input.cache = &cache;
        EXPECT_LE(distance(layer->forward(input), full.slice(1, begin, end)), 2e-5) << begin;
        if (const auto rows = layer->needed_rows()) cache.keep_newest(*rows);
        begin = end;
      }
      EXPECT_EQ(cache.length(), 30);
      EXPECT_EQ(cache.filled(0).size(1), i == 1 ? 7 : 30);
      EXPECT_EQ(cache.filled(0).size(2) + cache.filled(1).size(2), 24 + 8);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, LatentAttentionAt, ::testing::ValuesIn(testing::places()),
                         testing::place_name);

TEST(LatentDiffAttention, TheLayersOfMotif3HaveItsPublishedSizes) {
  const torch::NoGradGuard no_grad;
  for (int64_t i = 0; i < 8; ++i) {
    const nn::LatentAttentionOptions options = nn::motif_3_options(i);
    EXPECT_EQ(options.sliding_window(), i % 4 == 0 ? std::nullopt : std::optional<int64_t>(128));
    EXPECT_EQ(options.yarn().has_value(), i % 4 == 0);
    EXPECT_NEAR(options.scale_factor(), i % 4 == 0 ? 2.00474 : 1.0, 1e-5);
  }
  EXPECT_THROW(nn::motif_3_options(-1), Error);
  nn::LatentDiffAttention layer(nn::motif_3_options(4));
  const std::map<std::string, std::vector<int64_t>> published{
      {"wq_a", {1024, 4096}},   {"q_norm", {1024}},          {"wq_b", {80 * 192, 1024}},
      {"wkv_a", {576, 4096}},   {"kv_norm", {512}},          {"wkv_b", {16 * 256, 512}},
      {"wo", {4096, 64 * 128}}, {"lambda_proj", {64, 4096}}, {"wq_b_gate", {64 * 128, 1024}}};
  ASSERT_EQ(layer->named_parameters().size(), published.size());
  for (const auto& item : layer->named_parameters()) {
    const std::string name = item.key().substr(0, item.key().rfind(".weight"));
    EXPECT_EQ(item.value().sizes(), published.at(name)) << name;
  }
  nn::KvCache cache;
  nn::AttentionInput input{.x = torch::randn({1, 3, 4096})};
  input.cache = &cache;
  EXPECT_TRUE(layer->forward(input).isfinite().all().item<bool>());
  EXPECT_EQ(cache.filled(0).size(2) + cache.filled(1).size(2), 576);
}

TEST(LatentDiffAttention, RefusesSizesThatContradictEachOther) {
  const auto refused = [](const nn::LatentAttentionOptions& options) -> std::string {
    try {
      nn::LatentDiffAttention layer(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refused(recorded_options(0).num_noise_heads(3)).find("num_noise_heads"),
            std::string::npos);
  EXPECT_NE(refused(recorded_options(0).num_key_value_heads(4)).find("num_key_value_heads"),
            std::string::npos);
  EXPECT_NE(refused(recorded_options(0).qk_rope_head_dim(24)).find("qk_rope_head_dim"),
            std::string::npos);
  EXPECT_NE(refused(recorded_options(0).kv_lora_rank(0)).find("kv_lora_rank"), std::string::npos);
}

}  // namespace
}  // namespace diffattn::latent_test
