// SPDX-License-Identifier: Apache-2.0
//
// Properties that hold for all weights: the interplay of lambda, maps and norm, kinds of attention
// that coincide for special parameters, and gradients that match finite differences.

#include <cmath>

#include "tests/nn/layers.h"

namespace diffattn::testing::laws_test {
namespace {

using nn::AttentionTrace;
using nn::HeadNorm;
using nn::HeadTensors;
using nn::LambdaKind;
using Options = MultiheadDiffAttentionOptions;
using torch::Tensor;

constexpr auto kDouble = torch::kFloat64;

Tensor random_input(int64_t length = 8) { return torch::randn({2, length, 32}, kDouble); }

/// Returns a parameter that tests may write to.
Tensor parameter(MultiheadDiffAttention& layer, const std::string& name) {
  return layer->named_parameters()[name].detach();
}

void copy_parameters(MultiheadDiffAttention& to, MultiheadDiffAttention& from) {
  const torch::NoGradGuard no_grad;
  for (auto& item : to->named_parameters()) {
    item.value().copy_(from->named_parameters()[item.key()]);
  }
}

/// Views a weight [count d, E] as [count, d, E].
Tensor by_head(const Tensor& weight, int64_t head_dim) {
  return weight.unflatten(0, {-1, head_dim});
}

Tensor rms_normed(const Tensor& x, double eps) {
  return x * torch::rsqrt(x.square().mean(-1, true) + eps);
}

HeadTensors trace_of(MultiheadDiffAttention& layer, const Tensor& x) {
  AttentionTrace trace;
  layer->forward({.x = x}, &trace);
  return trace.calls.at(0);
}

/// Computes plain causal attention, [B, M, H, Dv].
Tensor plain_heads(const Tensor& q, const Tensor& k, const Tensor& v) {
  const int64_t group = q.size(2) / k.size(2);
  const auto first = [](const Tensor& t) { return t.transpose(1, 2); };
  return at::scaled_dot_product_attention(first(q), first(k.repeat_interleave(group, 2)),
                                          first(v.repeat_interleave(group, 2)), {}, 0.0, true)
      .transpose(1, 2);
}

TEST(Lambda, IsLambdaInitForZeroVectors) {
  for (const int64_t layer_index : {0, 1, 5, 27}) {
    auto layer = make_layer(Options(32, 4).layer_index(layer_index), kDouble);
    for (const char* name : {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"}) {
      parameter(layer, name).zero_();
    }
    EXPECT_EQ(layer->lambda(random_input(), kDouble).item<double>(), nn::lambda_init(layer_index));
  }
}

TEST(Lambda, FollowsItsVectors) {
  auto layer = make_layer(Options(32, 4).layer_index(2), kDouble);
  const auto dot = [&](const char* a, const char* b) {
    return (parameter(layer, a) * parameter(layer, b)).sum().item<double>();
  };
  EXPECT_NEAR(
      layer->lambda(random_input(), kDouble).item<double>(),
      std::exp(dot("lambda_q1", "lambda_k1")) - std::exp(dot("lambda_q2", "lambda_k2")) + 0.470713,
      1e-6);
}

TEST(Lambda, ReferencePrecisionRoundsAsPublished) {
  auto exact = make_layer(Options(32, 4), torch::kFloat32);
  auto rounded =
      make_layer(Options(32, 4).lambda_precision(nn::LambdaPrecision::kReference), torch::kFloat32);
  const Tensor x = torch::randn({1, 2, 32});
  const Tensor l = exact->lambda(x, torch::kBFloat16), r = rounded->lambda(x, torch::kBFloat16);
  EXPECT_EQ(l.scalar_type(), torch::kFloat32);
  EXPECT_EQ(r.scalar_type(), torch::kBFloat16);
  EXPECT_NE(l.item<float>(), r.item<float>());
  EXPECT_NEAR(l.item<float>(), r.item<float>(), 0.016);  // two roundings near 1
}

/// Compares with published tables. Motif's formula uses l - 1 and is negative in the first layer.
TEST(Lambda, InitFollowsThePublishedTables) {
  const std::vector<double> paper{0.2,      0.355509, 0.470713, 0.556058,
                                  0.619283, 0.666122, 0.700821, 0.726526};
  for (size_t l = 0; l < paper.size(); ++l) {
    EXPECT_NEAR(nn::lambda_init(static_cast<int64_t>(l)), paper[l], 5e-7);
    EXPECT_NEAR(nn::lambda_init(static_cast<int64_t>(l) + 1, nn::LambdaSchedule::kMotif), paper[l],
                5e-7);
  }
  EXPECT_NEAR(nn::lambda_init(27), 0.799818, 5e-7);
  EXPECT_NEAR(nn::lambda_init(0, nn::LambdaSchedule::kMotif), -0.009915, 5e-7);
  const auto sizes = check(Options(32, 4).lambda_schedule(nn::LambdaSchedule::kMotif));
  EXPECT_GT(sizes.out_scale, 1.0);
}

/// With equal maps, the head norm removes lambda except for the sign of 1 - lambda.
TEST(EqualMaps, GiveTheNormOfPlainAttention) {
  constexpr double kEps = 1e-14;
  for (const double lambda : {0.3, 1.7}) {
    auto layer = make_layer(
        Options(32, 4).lambda(LambdaKind::kFixed).lambda_init(lambda).norm_eps(kEps), kDouble);
    for (const char* name : {"q_proj.weight", "k_proj.weight"}) {
      const Tensor pairs = by_head(parameter(layer, name), 4).unflatten(0, {-1, 2});
      pairs.select(1, 1).copy_(pairs.select(1, 0));
    }
    const HeadTensors h = trace_of(layer, random_input());
    const double sign = lambda < 1.0 ? 1.0 : -1.0;
    const Tensor want = sign * (1.0 - lambda) * parameter(layer, "subln.weight") *
                        rms_normed(plain_heads(h.q1, h.k1, h.v), kEps);
    expect_close(attend(nn::Route::kFused, h), want, 1e-9, "lambda " + std::to_string(lambda));
  }
}

/// The first token sees only itself, so both maps are 1.
TEST(FirstToken, IsItsNormedValue) {
  auto layer = make_layer(Options(32, 4).norm_eps(1e-14).layer_index(3), kDouble);
  const HeadTensors h = trace_of(layer, random_input());
  const double lambda = h.lambda.item<double>(), init = nn::lambda_init(3);
  const Tensor want = (lambda < 1.0 ? 1.0 : -1.0) * (1.0 - init) *
                      parameter(layer, "subln.weight") * rms_normed(h.v.narrow(1, 0, 1), 1e-14);
  expect_close(attend(nn::Route::kFused, h).narrow(1, 0, 1), want, 1e-9, "token 0");
}

TEST(Maps, RowsSumToOneMinusLambda) {
  for (const NamedOptions& kind : every_kind()) {
    auto layer = make_layer(kind.options, kDouble);
    const HeadTensors h = trace_of(layer, random_input());
    const Tensor map = attention_map(h.q1, h.q2, h.k1, h.k2, h.lambda, h.options);
    const Tensor sums = map.select(2, 2).sum(-1).transpose(1, 2);  // [B, M, H]
    expect_close(sums, (1.0 - h.lambda).expand_as(sums), 1e-12, kind.name);
  }
}

/// Subtracting a flatter map never makes the largest entry negative.
TEST(Maps, TemperatureKeepsTheLargestColumnPositive) {
  auto layer = make_layer(
      Options(32, 4).kind(AttentionKind::kTemperature).lambda(LambdaKind::kFixed).lambda_init(0.99),
      kDouble);
  const HeadTensors h = trace_of(layer, 3.0 * random_input(20));
  const Tensor map = attention_map(h.q1, h.q2, h.k1, h.k2, h.lambda, h.options);
  const Tensor largest = map.select(2, 0).argmax(-1, true);
  EXPECT_GE(map.select(2, 2).gather(-1, largest).min().item<double>(), 0.0);
  EXPECT_LT(map.select(2, 2).min().item<double>(), 0.0);  // but makes others negative
}

TEST(Kinds, PairedAndLegacyPairingDiffer) {
  const auto options = Options(32, 4).num_kv_heads(2);
  auto paired = make_layer(options, kDouble);
  auto legacy = make_layer(Options(options).pairing(nn::GqaPairing::kLegacyNaive), kDouble);
  const Tensor x = random_input();
  copy_parameters(legacy, paired);
  EXPECT_GT((paired->forward(x) - legacy->forward(x)).abs().max().item<double>(), 1e-3);
  auto one = make_layer(Options(32, 4), kDouble);
  auto other = make_layer(Options(32, 4).pairing(nn::GqaPairing::kLegacyNaive), kDouble);
  copy_parameters(other, one);
  expect_close(one->forward(x), other->forward(x), 1e-13, "one kv head per head");
}

TEST(Kinds, GroupsOfOneSignalHeadAreV1) {
  auto v1 = make_layer(Options(32, 4), kDouble);
  auto grouped = make_layer(Options(32, 4).kind(AttentionKind::kGrouped).noise_heads(4), kDouble);
  copy_parameters(grouped, v1);
  const Tensor x = random_input();
  expect_close(grouped->forward(x), v1->forward(x), 1e-13, "ratio 1");
}

/// Head j of a group is its signal head minus lambda times the noise head of the group.
TEST(Kinds, GroupsShareTheirNoiseHead) {
  auto layer = make_layer(Options(32, 6)
                              .head_dim(4)
                              .kind(AttentionKind::kGrouped)
                              .noise_heads(2)
                              .head_norm(HeadNorm::kNone),
                          kDouble);
  const Tensor x = random_input();
  const auto heads = [&](const char* name, int64_t width) {
    return torch::linear(x, parameter(layer, name)).unflatten(-1, {-1, width});
  };
  const Tensor q = heads("q_proj.weight", 4).unflatten(2, {2, 4});  // 3 signal heads, then noise
  const Tensor k = heads("k_proj.weight", 4).unflatten(2, {2, 2}), v = heads("v_proj.weight", 8);
  const Tensor lambda = layer->lambda(x, kDouble);
  std::vector<Tensor> outs;
  for (int64_t group = 0; group < 2; ++group) {
    const auto of = [&](const Tensor& q_head, int64_t map) {
      return plain_heads(q_head.unsqueeze(2), k.select(2, group).narrow(2, map, 1),
                         v.narrow(2, group, 1));
    };
    const Tensor noise = of(q.select(2, group).select(2, 3), 1);
    for (int64_t j = 0; j < 3; ++j) {
      outs.push_back(of(q.select(2, group).select(2, j), 0) - lambda * noise);
    }
  }
  expect_close(attend(nn::Route::kFused, trace_of(layer, x)), torch::cat(outs, 2), 1e-12, "heads");
}

Options v2_options() {
  return Options(32, 4)
      .num_kv_heads(2)
      .kind(AttentionKind::kV2)
      .lambda(LambdaKind::kToken)
      .head_norm(HeadNorm::kNone);
}

TEST(Kinds, V2WithoutItsSecondMapIsPlain) {
  auto v2 = make_layer(v2_options(), kDouble);
  const Tensor x = random_input().abs();  // so that W = -1e4 gives a large negative lambda_proj x
  parameter(v2, "lambda_proj.weight").fill_(-1e4);
  const HeadTensors h = trace_of(v2, x);
  expect_close(attend(nn::Route::kFused, h), plain_heads(h.q1, h.k1, h.v), 1e-13, "sigmoid 0");
  auto plain = make_layer(
      Options(32, 4).num_kv_heads(2).kind(AttentionKind::kPlain).head_norm(HeadNorm::kNone),
      kDouble);
  const Tensor even = by_head(parameter(v2, "q_proj.weight"), 8).slice(0, 0, {}, 2).flatten(0, 1);
  parameter(plain, "q_proj.weight").copy_(even);
  for (const char* name : {"k_proj.weight", "v_proj.weight", "out_proj.weight"}) {
    parameter(plain, name).copy_(parameter(v2, name));
  }
  expect_close(v2->forward(x), plain->forward(x), 1e-12, "heads 0::2");
}

TEST(Kinds, V2WithEqualPairsIsHalfOfPlain) {
  auto v2 = make_layer(v2_options(), kDouble);
  parameter(v2, "lambda_proj.weight").zero_();  // sigmoid 1/2
  const Tensor pairs = by_head(parameter(v2, "q_proj.weight"), 8).unflatten(0, {-1, 2});
  pairs.select(1, 1).copy_(pairs.select(1, 0));
  const HeadTensors h = trace_of(v2, random_input());
  expect_close(attend(nn::Route::kFused, h), 0.5 * plain_heads(h.q1, h.k1, h.v), 1e-13, "half");
}

/// Compares derivatives along random directions with finite differences, for every parameter and
/// the input.
TEST(Gradients, MatchDifferences) {
  constexpr double kStep = 1e-5;
  for (const NamedOptions& kind : every_kind()) {
    auto layer = make_layer(kind.options, kDouble);
    Tensor x = random_input().requires_grad_(true);
    const Tensor g = torch::randn_like(x);
    const auto loss = [&] { return (layer->forward(x) * g).sum(); };
    std::vector<std::pair<std::string, Tensor>> leaves{{"x", x}};
    for (auto& item : layer->named_parameters()) leaves.emplace_back(item.key(), item.value());
    std::vector<Tensor> tensors;
    for (const auto& leaf : leaves) tensors.push_back(leaf.second);
    const auto gradients = torch::autograd::grad({loss()}, tensors);
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < leaves.size(); ++i) {
      const Tensor direction = torch::randn_like(tensors[i]);
      const double expected = (gradients[i] * direction).sum().item<double>();
      tensors[i].add_(direction, kStep);
      const double above = loss().item<double>();
      tensors[i].sub_(direction, 2 * kStep);
      const double below = loss().item<double>();
      tensors[i].add_(direction, kStep);
      EXPECT_NEAR((above - below) / (2 * kStep), expected, 2e-6 * std::max(1.0, std::abs(expected)))
          << kind.name << ": " << leaves[i].first;
    }
  }
}

}  // namespace
}  // namespace diffattn::testing::laws_test
