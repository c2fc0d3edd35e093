// SPDX-License-Identifier: Apache-2.0
//
// Compares the modules with recordings of the published ones: outputs and all gradients agree
// within 2e-5 in float32, by every route.

#include <cmath>

#include "diffattn/nn/presets.h"
#include "tests/nn/layers.h"
#include "tests/ops/golden.h"

namespace diffattn::testing::golden_test {
namespace {

using nn::GqaPairing;
using nn::Route;
using torch::Tensor;

constexpr double kTolerance = 2e-5;

/// Computes theta from the recorded tables: frequency 1 of n is theta^(-1 / n).
nn::RotaryOptions rotary_of(const GoldenFile& file) {
  if (!file.has("rope.cos")) return {};
  const Tensor sin = file.tensors.at("rope.sin").to(torch::kFloat64);
  const Tensor cos = file.tensors.at("rope.cos").to(torch::kFloat64);
  const double angle = std::atan2(sin[1][1].item<double>(), cos[1][1].item<double>());
  const double theta = std::pow(angle, -static_cast<double>(sin.size(1)));
  return nn::RotaryOptions().style(nn::RotaryStyle::kInterleaved).rope_theta(std::round(theta));
}

MultiheadDiffAttentionOptions microsoft_v1(const GoldenFile& file) {
  return MultiheadDiffAttentionOptions(file.number("embed_dim"), file.number("num_heads"))
      .num_kv_heads(file.number("num_kv_heads"))
      .layer_index(file.number("depth"))
      .rotary(rotary_of(file));
}

MultiheadDiffAttentionOptions microsoft_v2(const GoldenFile& file) {
  return preset_options("microsoft_v2",
                        nn::PresetOptions(file.number("d_model"), file.number("num_heads"))
                            .num_key_value_heads(file.number("num_kv_heads"))
                            .head_dim(file.number("head_dim")))
      .rotary(rotary_of(file));
}

/// Head counts are those of the baseline Transformer; keys pair as in the naive file.
MultiheadDiffAttentionOptions sdpa_fork(const GoldenFile& file) {
  return MultiheadDiffAttentionOptions(file.number("embed_dim"),
                                       file.number("baseline_num_heads") / 2)
      .num_kv_heads(file.number("baseline_num_kv_heads") / 2)
      .layer_index(file.number("depth"))
      .pairing(GqaPairing::kLegacyNaive)
      .rotary(rotary_of(file));
}

/// A module with the recorded parameters, and the recorded input as a leaf.
struct Recorded {
  const GoldenFile& file;
  MultiheadDiffAttention layer;
  Tensor x;

  Recorded(const GoldenFile& golden, const MultiheadDiffAttentionOptions& options,
           torch::Device device)
      : file(golden), layer(options) {
    const torch::NoGradGuard no_grad;
    size_t recorded = 0;
    for (const auto& [name, tensor] : file.tensors) recorded += name.starts_with("param.");
    EXPECT_EQ(layer->named_parameters().size(), recorded) << file.path;
    for (auto& item : layer->named_parameters()) {
      item.value().copy_(file.tensors.at("param." + item.key()));
    }
    layer->to(device);
    x = file.tensors.at("x").to(device).clone().requires_grad_(true);
  }

  void expect_output(const std::string& name, Route route) {
    layer->set_route(route);
    expect_close(layer->forward(x), file.tensors.at(name), kTolerance,
                 file.path + ": " + name + ", " + route_name(route));
  }

  /// Compares the gradients of sum(out g).
  void expect_gradients(Route route) {
    layer->set_route(route);
    layer->zero_grad();
    if (x.grad().defined()) x.mutable_grad() = Tensor();
    (layer->forward(x) * file.tensors.at("g").to(x.device())).sum().backward();
    const std::string what = file.path + ", " + route_name(route) + ": grad.";
    expect_close(x.grad(), file.tensors.at("grad.x"), kTolerance, what + "x");
    for (const auto& item : layer->named_parameters()) {
      expect_close(item.value().grad(), file.tensors.at("grad." + item.key()), kTolerance,
                   what + item.key());
    }
  }
};

/// Compares every recorded output with this prefix, and the gradients, by every route.
void expect_recording(const GoldenFile& file, const MultiheadDiffAttentionOptions& options,
                      const std::string& prefix, torch::Device device) {
  Recorded recorded(file, options, device);
  for (const Route route : nn::routes()) {
    for (const auto& [name, tensor] : file.tensors) {
      if (name == "out" || name.starts_with(prefix)) recorded.expect_output(name, route);
    }
    recorded.expect_gradients(route);
  }
}

void expect_recordings(torch::Device device) {
  int compared = 0;
  for (const Golden& golden : find_goldens()) {
    if (golden.kind == GoldenKind::kDiffLlama) continue;  // whole models, not modules
    const GoldenFile file = read_golden(golden.path);
    ++compared;
    if (golden.kind == GoldenKind::kMicrosoftV2) {
      expect_recording(file, microsoft_v2(file), "out.", device);
    } else if (golden.kind == GoldenKind::kSdpa) {
      expect_recording(file, sdpa_fork(file), "out.", device);
    } else {
      expect_recording(file, microsoft_v1(file), "out.flashdiff", device);
      if (!file.has("out.naive")) continue;
      Recorded naive(file, microsoft_v1(file).pairing(GqaPairing::kLegacyNaive), device);
      for (const Route route : nn::routes()) naive.expect_output("out.naive", route);
    }
  }
  EXPECT_GE(compared, 1) << "no recordings of modules";
}

TEST(NnGolden, ModulesGiveWhatWasRecorded) { expect_recordings(torch::kCPU); }

TEST(NnGolden, ModulesGiveWhatWasRecordedOnCuda) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  expect_recordings(torch::kCUDA);
}

}  // namespace
}  // namespace diffattn::testing::golden_test
