// SPDX-License-Identifier: Apache-2.0
//
// Options: errors for invalid ones, published parameter names and counts, presets, and rotary
// embeddings.

#include <cmath>
#include <functional>
#include <set>
#include <sstream>

#include "diffattn/nn/presets.h"
#include "tests/nn/layers.h"

namespace diffattn::testing::options_test {
namespace {

using nn::make_preset;
using nn::PresetOptions;
using nn::Rotary;
using nn::RotaryOptions;
using nn::RotaryScaling;
using nn::RotaryStyle;
using Options = MultiheadDiffAttentionOptions;
using torch::Tensor;

void expect_refused(const std::string& option, const std::function<void()>& make) {
  try {
    make();
    ADD_FAILURE() << "not refused: " << option;
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'" + option + "'"), std::string::npos) << text;
    EXPECT_NE(text.find("expected"), std::string::npos) << text;
  }
}

TEST(WrongOptions, AreRefusedByName) {
  const auto refused = [](const std::string& name, const Options& options) {
    expect_refused(name, [&] { MultiheadDiffAttention layer(options); });
  };
  const auto rotary = RotaryOptions().style(RotaryStyle::kHalfSplit);
  refused("embed_dim", Options(0, 4));
  refused("num_heads", Options(32, 0));
  refused("num_heads", Options(32, 5));
  refused("num_heads", Options(20, 4));  // does not divide into pairs of sub-heads
  refused("num_kv_heads", Options(32, 4).num_kv_heads(3));
  refused("num_kv_heads", Options(32, 4).num_kv_heads(0));
  refused("num_kv_heads", Options(32, 4).num_kv_heads(8).kind(AttentionKind::kV2));
  refused("num_kv_heads", Options(48, 6).num_kv_heads(4).kind(AttentionKind::kV2));
  refused("layout", Options(32, 4).kind(AttentionKind::kV2).layout(nn::HeadLayout::kHalves));
  refused("pairing",
          Options(32, 4).layout(nn::HeadLayout::kHalves).pairing(nn::GqaPairing::kLegacyNaive));
  refused("noise_heads", Options(32, 4).kind(AttentionKind::kGrouped));
  refused("noise_heads", Options(32, 4).kind(AttentionKind::kGrouped).noise_heads(3));
  refused("noise_heads", Options(32, 4).noise_heads(2));
  refused("num_kv_heads",
          Options(32, 4).kind(AttentionKind::kGrouped).noise_heads(2).num_kv_heads(4));
  refused("temperature", Options(32, 4).kind(AttentionKind::kTemperature).temperature(1.0));
  refused("lambda_init", Options(32, 4)
                             .kind(AttentionKind::kTemperature)
                             .lambda(nn::LambdaKind::kFixed)
                             .lambda_init(1.0));
  refused("lambda_init", Options(32, 4).lambda_init(NAN));
  refused("layer_index", Options(32, 4).layer_index(-1));
  refused("window", Options(32, 4).window(0));
  refused("window", Options(32, 4).window(4).causal(false));
  refused("window", Options(32, 4).window(4).causal(false).cross_attention(true));
  refused("rotary", Options(32, 4).rotary(rotary).cross_attention(true));
  refused("context_dim", Options(32, 4).context_dim(16));
  refused("dropout", Options(32, 4).dropout(1.0));
  refused("norm_eps", Options(32, 4).norm_eps(-1.0));
  refused("rotary.width", Options(32, 4).rotary(RotaryOptions(rotary).width(3)));
  refused("rotary.width", Options(32, 4).rotary(RotaryOptions(rotary).width(6)));
  refused("rotary.rope_theta", Options(32, 4).rotary(RotaryOptions(rotary).rope_theta(0.0)));
  refused(
      "rotary.factor",
      Options(32, 4).rotary(RotaryOptions(rotary).rope_type(RotaryScaling::kLinear).factor(0.0)));
  refused("rotary.high_freq_factor", Options(32, 4).rotary(RotaryOptions(rotary)
                                                               .rope_type(RotaryScaling::kLlama3)
                                                               .factor(8.0)
                                                               .high_freq_factor(1.0)));
}

TEST(WrongOptions, OfPresetsAreRefusedByName) {
  expect_refused("preset", [] { make_preset("microsoft_v3", {32, 4}); });
  try {
    make_preset("microsoft_v3", {32, 4});
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const std::string& name : nn::preset_names())
      EXPECT_NE(text.find(name), std::string::npos);
  }
  expect_refused("num_key_value_heads",
                 [] { make_preset("diffllama", PresetOptions(32, 4).num_key_value_heads(1)); });
  expect_refused("num_attention_heads", [] { make_preset("microsoft_v1", {35, 5}); });
  expect_refused("num_attention_heads", [] { make_preset("transformer", {32, 5}); });
  expect_refused("num_attention_heads",
                 [] { make_preset("motif_2_12_7b", PresetOptions(32, 4).num_key_value_heads(8)); });
  expect_refused("rope_type", [] { nn::rotary_scaling("yarn"); });
}

TEST(WrongInput, IsRefusedByName) {
  auto layer = make_layer(Options(32, 4), torch::kFloat32);
  const Tensor x = torch::randn({2, 5, 32});
  nn::KvCache cache;
  expect_refused("x", [&] { layer->forward(torch::randn({2, 5, 31})); });
  expect_refused("x", [&] { layer->forward(torch::randn({5, 32})); });
  expect_refused("x", [&] { layer->forward(Tensor()); });
  expect_refused("context", [&] { layer->forward({.x = x, .context = x}); });
  expect_refused("mask.window", [&] {
    layer->forward({.x = x, .mask = AttentionMask().causal(false).window(2)});
  });
  expect_refused("cache", [&] {
    const auto mask = AttentionMask().cu_seqlens_q(torch::tensor({0, 5}));
    layer->forward({.x = x[0], .mask = mask, .cache = &cache});
  });
  auto cross = make_layer(Options(32, 4).cross_attention(true), torch::kFloat32);
  expect_refused("context", [&] { cross->forward(x); });
  expect_refused("context", [&] { cross->forward({.x = x, .context = x.narrow(2, 0, 8)}); });
}

/// Head counts of presets are those of the baseline Transformer, twice those of the published
/// differential layers.
TEST(ParameterCounts, AreThePublishedOnes) {
  const auto count = [](const char* preset, std::optional<int64_t> kv) {
    return make_preset(preset, PresetOptions(1024, 16).num_key_value_heads(kv))->parameter_count();
  };
  EXPECT_EQ(count("microsoft_v1", {}), 4194688);
  EXPECT_EQ(count("transformer", {}), 4194304);
  EXPECT_EQ(count("microsoft_v1", 8), 3146112);
  EXPECT_EQ(count("transformer", 8), 3145728);
  EXPECT_EQ(count("dint", {}), 4194688);
  EXPECT_EQ(count("diffllama", {}), 4194304 + 4 * 64);
  EXPECT_EQ(count("temperature", {}), 4194304);
  // Twice as many queries, and lambda_proj.
  EXPECT_EQ(count("microsoft_v2", {}), 4194304 + 1024 * 1024 + 16 * 1024);
  // Motif-2-12.7B: q 40 x 128, k and v 16 x 128, o from 32 heads of 256.
  const auto motif =
      make_preset("motif_2_12_7b", PresetOptions(4096, 40).num_key_value_heads(16).head_dim(128));
  EXPECT_EQ(motif->parameter_count(),
            4096 * (40 * 128 + 2 * 16 * 128 + 2 * 32 * 128) + 4 * 128 + 256);
}

TEST(Presets, HaveThePublishedParameterNames) {
  const auto names = [](const char* preset) {
    std::set<std::string> result;
    for (const auto& item : make_preset(preset, {32, 4})->named_parameters()) {
      result.insert(item.key());
    }
    return result;
  };
  using Names = std::set<std::string>;
  const Names lambdas{"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"};
  const auto with = [](Names base, const Names& more) {
    base.insert(more.begin(), more.end());
    return base;
  };
  const Names qkv{"q_proj.weight", "k_proj.weight", "v_proj.weight"};
  EXPECT_EQ(names("microsoft_v1"), with(with(qkv, lambdas), {"out_proj.weight", "subln.weight"}));
  EXPECT_EQ(names("microsoft_v2"), with(qkv, {"o_proj.weight", "lambda_proj.weight"}));
  EXPECT_EQ(names("diffllama"), with(with(qkv, lambdas), {"o_proj.weight"}));
  EXPECT_EQ(names("motif_2_6b"), with(with(qkv, lambdas), {"o_proj.weight", "subln.weight"}));
  EXPECT_EQ(names("transformer"), with(qkv, {"o_proj.weight"}));
  const std::string inner = "inner_cross_attn.";
  EXPECT_EQ(names("phi4_flash"),
            (Names{"Wqkv.weight", "Wqkv.bias", "out_proj.weight", "out_proj.bias",
                   inner + "lambda_q1", inner + "lambda_k1", inner + "lambda_q2",
                   inner + "lambda_k2", inner + "subln.weight"}));
}

TEST(Presets, RunAndPrintTheirParameterCount) {
  for (const std::string& name : nn::preset_names()) {
    const PresetOptions options(32, 4);
    const auto layer = make_preset(name, options);
    const Tensor out = layer->forward({.x = torch::randn({2, 5, 32})});
    EXPECT_EQ(out.sizes(), torch::IntArrayRef({2, 5, 32})) << name;
    EXPECT_TRUE(out.isfinite().all().item<bool>()) << name;
    std::ostringstream text;
    print_preset(text, name, options);
    EXPECT_NE(text.str().find(std::to_string(layer->parameter_count()) + " parameters"),
              std::string::npos)
        << text.str();
  }
}

TEST(Presets, OneMatrixForQkvHoldsTheirRowsInOrder) {
  auto one = make_layer(nn::preset_options("phi4_flash", {32, 4}), torch::kFloat64);
  auto three = make_layer(Options(32, 2).qkv_bias(true).out_bias(true), torch::kFloat64);
  {
    const torch::NoGradGuard no_grad;
    auto from = one->named_parameters(), to = three->named_parameters();
    for (const std::string part : {"weight", "bias"}) {
      const auto rows = from["Wqkv." + part].chunk(3, 0);
      to["q_proj." + part].copy_(rows[0]);
      to["k_proj." + part].copy_(rows[1]);
      to["v_proj." + part].copy_(rows[2]);
      to["out_proj." + part].copy_(from["out_proj." + part]);
    }
    for (const std::string name : {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"}) {
      to[name].copy_(from["inner_cross_attn." + name]);
    }
    to["subln.weight"].copy_(from["inner_cross_attn.subln.weight"]);
  }
  const Tensor x = torch::randn({2, 6, 32}, torch::kFloat64);
  expect_close(one->forward(x), three->forward(x), 1e-13, "phi4_flash");
}

class RotaryTest : public ::testing::Test {
 protected:
  static Tensor rotated(const RotaryOptions& options, const Tensor& x, int64_t offset = 0) {
    Rotary rotary(x.size(-1), options);
    return rotary->rotate(x, rotary->table(offset, x.size(1), x.options()));
  }
  static RotaryOptions half_split() { return RotaryOptions().style(RotaryStyle::kHalfSplit); }
  static Tensor heads(int64_t length, int64_t width = 8) {
    torch::manual_seed(5);
    return torch::randn({2, length, 3, width}, torch::kFloat64);
  }
};

TEST_F(RotaryTest, RotatesPairsByPositionTimesFrequency) {
  const Tensor x = heads(4);
  const Tensor y = rotated(half_split().rope_theta(100.0), x, 7);
  for (int64_t i = 0; i < 4; ++i) {  // pair (i, i + 4) of position 9
    const double angle = 9.0 * std::pow(100.0, -static_cast<double>(i) / 4.0);
    const double a = x[1][2][1][i].item<double>(), b = x[1][2][1][i + 4].item<double>();
    EXPECT_NEAR(y[1][2][1][i].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-12);
    EXPECT_NEAR(y[1][2][1][i + 4].item<double>(), b * std::cos(angle) + a * std::sin(angle), 1e-12);
  }
}

TEST_F(RotaryTest, StylesDifferByTheOrderOfElements) {
  const Tensor x = heads(6);
  const Tensor order = torch::tensor({0, 2, 4, 6, 1, 3, 5, 7});
  const Tensor interleaved = rotated(RotaryOptions().style(RotaryStyle::kInterleaved), x);
  expect_close(rotated(half_split(), x.index_select(-1, order)),
               interleaved.index_select(-1, order), 1e-14, "styles");
  EXPECT_TRUE(torch::equal(rotated(RotaryOptions(), x), x));
}

TEST_F(RotaryTest, PartOfTheWidthLeavesTheRest) {
  const Tensor x = heads(6);
  const Tensor y = rotated(half_split().width(4), x);
  EXPECT_TRUE(torch::equal(y.slice(-1, 4), x.slice(-1, 4)));
  expect_close(y.slice(-1, 0, 4), rotated(half_split(), x.slice(-1, 0, 4).contiguous()), 1e-14,
               "front");
}

TEST_F(RotaryTest, PositionsMayDifferByRow) {
  const Tensor x = heads(5);
  Rotary rotary(8, half_split());
  const Tensor positions = torch::tensor({{0, 1, 2, 3, 4}, {0, 0, 0, 1, 2}});
  const Tensor y = rotary->rotate(x, rotary->table(positions, x.options()));
  expect_close(y[0], rotated(half_split(), x)[0], 1e-14, "row 0");
  expect_close(y[1].narrow(0, 2, 3), rotated(half_split(), x.narrow(1, 2, 3))[1], 1e-14, "row 1");
}

TEST_F(RotaryTest, LinearScalingSlowsPositionsDown) {
  const Tensor x = heads(1);
  const auto scaled = half_split().rope_type(RotaryScaling::kLinear).factor(4.0);
  expect_close(rotated(scaled, x, 12), rotated(half_split(), x, 3), 1e-12, "12 / 4");
}

TEST_F(RotaryTest, DynamicScalingStartsBeyondTheTrainingLength) {
  const auto scaled = half_split()
                          .rope_type(RotaryScaling::kDynamic)
                          .factor(2.0)
                          .original_max_position_embeddings(16);
  const Tensor x = heads(16);
  expect_close(rotated(scaled, x), rotated(half_split(), x), 1e-14, "16 of 16");
  const Tensor longer = heads(32);
  // theta (factor N / L - factor + 1)^(w / (w - 2)) = 10000 * 3^(8 / 6)
  const auto stretched = half_split().rope_theta(10000.0 * std::pow(3.0, 8.0 / 6.0));
  expect_close(rotated(scaled, longer), rotated(stretched, longer), 1e-12, "32 of 16");
}

TEST_F(RotaryTest, Llama3StretchesLongWavesOnly) {
  const auto scaled = half_split()
                          .rope_type(RotaryScaling::kLlama3)
                          .factor(8.0)
                          .original_max_position_embeddings(64);
  Rotary rotary(8, scaled);
  const Tensor one = torch::ones({1}, torch::kLong);
  const auto table = rotary->table(one, torch::dtype(torch::kFloat64));
  const Tensor angle = torch::atan2(table.sin, table.cos)[0];
  // Wavelengths of 6.28, 62.8, 628 and 6283 positions: unchanged below 16, stretched by 8 above 64.
  EXPECT_NEAR(angle[0].item<double>(), 1.0, 1e-12);
  const double smooth = (64.0 / (2.0 * M_PI * 10.0) - 1.0) / 3.0;
  EXPECT_NEAR(angle[1].item<double>(), (1.0 - smooth) * 0.1 / 8.0 + smooth * 0.1, 1e-12);
  EXPECT_NEAR(angle[2].item<double>(), 0.01 / 8.0, 1e-12);
  EXPECT_NEAR(angle[3].item<double>(), 0.001 / 8.0, 1e-12);
}

TEST_F(RotaryTest, KeepsTheTypeOfTheHeads) {
  const Tensor x = heads(600).to(torch::kBFloat16);
  const Tensor y = rotated(half_split(), x);
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  expect_close(y, rotated(half_split(), x.to(torch::kFloat64)), 0.02, "bfloat16");
}

}  // namespace
}  // namespace diffattn::testing::options_test
