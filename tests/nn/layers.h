// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "diffattn/nn/multihead_diff_attention.h"

/// Small layers of every kind, and a comparison that prints the worst element.
namespace diffattn::testing {

using nn::AttentionInput;
using nn::AttentionKind;
using nn::AttentionMask;
using nn::MultiheadDiffAttention;
using nn::MultiheadDiffAttentionOptions;

/// Compares with an absolute tolerance up to magnitude 1, a relative one above.
inline void expect_close(const torch::Tensor& got, const torch::Tensor& want, double tolerance,
                         const std::string& what) {
  ASSERT_TRUE(got.defined() && want.defined()) << what;
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  if (want.numel() == 0) return;
  const torch::Tensor expected = want.to(torch::kCPU, torch::kFloat64).flatten();
  const torch::Tensor actual = got.to(torch::kCPU, torch::kFloat64).flatten();
  const torch::Tensor error = (actual - expected).abs() / expected.abs().clamp_min(1.0);
  const int64_t at = error.argmax().item<int64_t>();
  // The comparison is false for NaN, so NaN fails.
  EXPECT_TRUE(error[at].item<double>() <= tolerance)
      << what << ": element " << at << " is " << actual[at].item<double>() << ", expected "
      << expected[at].item<double>();
}

struct NamedOptions {
  std::string name;
  MultiheadDiffAttentionOptions options;
};

/// Returns options that cover every kind, layout, pairing, norm and lambda. Width 32, d = 4.
inline std::vector<NamedOptions> every_kind() {
  using namespace nn;  // NOLINT: almost every name below comes from it
  using Options = MultiheadDiffAttentionOptions;
  const auto interleaved = RotaryOptions().style(RotaryStyle::kInterleaved);
  const auto half_split = RotaryOptions().style(RotaryStyle::kHalfSplit);
  return {
      {"v1", Options(32, 4).rotary(interleaved).layer_index(1)},
      {"v1 halves", Options(32, 4)
                        .num_kv_heads(2)
                        .layout(HeadLayout::kHalves)
                        .rotary(half_split)
                        .head_norm(HeadNorm::kPlain)
                        .qkv_bias(true)},
      {"v1 legacy", Options(32, 4).num_kv_heads(2).pairing(GqaPairing::kLegacyNaive)},
      {"v1 token", Options(32, 4).lambda(LambdaKind::kToken).head_norm(HeadNorm::kNone)},
      {"v2", Options(32, 4)
                 .head_dim(4)
                 .num_kv_heads(2)
                 .kind(AttentionKind::kV2)
                 .lambda(LambdaKind::kToken)
                 .head_norm(HeadNorm::kNone)
                 .rotary(interleaved)},
      {"grouped", Options(32, 4)
                      .kind(AttentionKind::kGrouped)
                      .noise_heads(2)
                      .lambda_schedule(LambdaSchedule::kMotif)
                      .rotary(half_split)},
      {"temperature", Options(32, 4)
                          .head_dim(4)
                          .kind(AttentionKind::kTemperature)
                          .lambda(LambdaKind::kLearned)
                          .rotary(RotaryOptions().style(RotaryStyle::kHalfSplit).width(2))},
      {"plain", Options(32, 4)
                    .num_kv_heads(2)
                    .kind(AttentionKind::kPlain)
                    .head_norm(HeadNorm::kNone)
                    .rotary(half_split)},
  };
}

/// Makes a layer with parameters drawn from a seed, and norm weights other than 1.
inline MultiheadDiffAttention make_layer(const MultiheadDiffAttentionOptions& options,
                                         torch::ScalarType type, uint64_t seed = 7) {
  torch::manual_seed(seed);
  MultiheadDiffAttention layer(options);
  layer->to(type);
  const torch::NoGradGuard no_grad;
  for (auto& item : layer->named_parameters()) {
    if (item.key().ends_with("subln.weight")) item.value().uniform_(0.5, 1.5);
  }
  return layer;
}

}  // namespace diffattn::testing
