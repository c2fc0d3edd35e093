// SPDX-License-Identifier: Apache-2.0
//
// DINT and Shared-DIFF: comparison with dense maps, and the laws of attention layers.

#include "diffattn/nn/dint_attention.h"
#include "diffattn/nn/shared_diff_attention.h"
#include "tests/nn/layer_laws.h"

namespace diffattn::testing::dint_test {
namespace {

using namespace diffattn::nn;

const auto kDouble = torch::kFloat64;

HeadTensors random_heads(int64_t batch, int64_t length, AttentionOptions options) {
  const auto make = [&](int64_t heads, int64_t width) {
    return torch::randn({batch, length, heads, width}, kDouble);
  };
  return {.q1 = make(4, 3),
          .q2 = make(4, 3),
          .k1 = make(2, 3),
          .k2 = make(2, 3),
          .v = make(2, 6),
          .lambda = torch::tensor(0.7, kDouble),
          .options = std::move(options)};
}

/// Computes (P1 - lambda P2 + lambda G) v from its definition, for masks without padding.
Tensor dense_dint(const HeadTensors& h, bool causal, std::optional<int64_t> window) {
  const int64_t n = h.q1.size(1);
  Tensor visible = torch::ones({n, n}, torch::kBool);
  if (causal) visible = visible.tril();
  if (window) visible = visible.triu(1 - *window);
  const auto heads = [](const Tensor& t, int64_t repeat) {
    return t.transpose(1, 2).repeat_interleave(repeat, 1);
  };
  const auto map = [&](const Tensor& q, const Tensor& k) {
    const Tensor s = heads(q, 1).matmul(heads(k, 2).transpose(-1, -2)) / std::sqrt(3.0);
    return s.masked_fill(~visible, -INFINITY).softmax(-1);
  };
  const Tensor p1 = map(h.q1, h.k1), p2 = map(h.q2, h.k2);
  Tensor g = torch::zeros_like(p1);
  for (int64_t t = 0; t < n; ++t) {
    g.select(2, t).copy_(p1.narrow(2, 0, causal ? t + 1 : n).mean(2));
  }
  const Tensor lambda = h.lambda.dim() == 3 ? h.lambda.transpose(1, 2).unsqueeze(-1) : h.lambda;
  return (p1 - lambda * p2 + lambda * g).matmul(heads(h.v, 2)).transpose(1, 2);
}

TEST(Dint, EqualsTheDenseMap) {
  torch::manual_seed(1);
  for (const Route route : {Route::kFused, Route::kNaive, Route::kTwoCalls}) {
    HeadTensors causal = random_heads(2, 9, AttentionOptions().causal(true));
    expect_close(dint_heads(route, causal), dense_dint(causal, true, {}), "causal");
    causal.lambda = torch::randn({2, 9, 4}, kDouble);
    expect_close(dint_heads(route, causal), dense_dint(causal, true, {}), "lambda of tokens");
    const auto windowed = random_heads(1, 9, AttentionOptions().causal(true).window(3));
    expect_close(dint_heads(route, windowed), dense_dint(windowed, true, 3), "window");
    const auto published = random_heads(2, 9, {});
    expect_close(dint_heads(route, published), dense_dint(published, false, {}), "bidirectional");
  }
}

TEST(Dint, RowsSumToOne) {
  torch::manual_seed(2);
  const Tensor starts = torch::tensor({0, 4}), lengths = torch::tensor({11, 7});
  for (const bool causal : {true, false}) {
    for (const auto& options :
         {AttentionOptions().causal(causal), AttentionOptions().causal(causal).key_starts(starts),
          AttentionOptions().causal(causal).key_lengths(lengths),
          AttentionOptions().causal(causal).key_starts(starts).key_lengths(lengths)}) {
      HeadTensors h = random_heads(2, 11, options);
      h.v.fill_(1.0);
      const Tensor sums = dint_heads(Route::kFused, h);
      const auto real = [&](int64_t b) {
        const int64_t begin = options.key_starts() ? starts[b].item<int64_t>() : 0;
        const int64_t end = options.key_lengths() ? lengths[b].item<int64_t>() : 11;
        return sums[b].narrow(0, begin, end - begin);
      };
      for (const int64_t b : {0, 1}) {
        expect_close(real(b), torch::ones_like(real(b)), causal ? "causal" : "bidirectional");
      }
    }
  }
  HeadTensors windowed = random_heads(1, 11, AttentionOptions().window(2));
  windowed.v.fill_(1.0);
  expect_close(dint_heads(Route::kFused, windowed), torch::ones({1, 11, 4, 6}, kDouble), "window");
}

MultiheadDiffAttentionOptions small(bool causal = true) {
  return MultiheadDiffAttentionOptions(24, 2).num_kv_heads(1).layer_index(1).causal(causal).rotary(
      RotaryOptions().style(RotaryStyle::kInterleaved));
}

TEST(Dint, LawsOfLayers) {
  torch::manual_seed(3);
  const Tensor x = torch::randn({2, 9, 24}, kDouble);
  for (const auto& options : {small(), small().window(4)}) {
    auto layer = randomised(DintAttention(options));
    const Forward forward = forward_of(*layer);
    expect_causal(forward, x);
    expect_cached_equals_full(forward, x);
    expect_cached_equals_full(forward, x, AttentionMask().key_starts(torch::tensor({0, 2})));
    expect_padding_and_packing(forward, x, {9, 5});
  }
  auto published = randomised(DintAttention(small(/*causal=*/false)));
  expect_padding_and_packing(forward_of(*published), x, {9, 5});
}

TEST(Dint, OnlyTheCausalFormIsCausal) {
  torch::manual_seed(4);
  for (const bool causal : {true, false}) {
    const HeadTensors h = random_heads(1, 5, AttentionOptions().causal(causal));
    const Tensor out = dint_heads(Route::kFused, h);
    const Tensor own = h.v.select(1, 0).repeat_interleave(2, 1);  // token 0 sees only itself
    EXPECT_EQ(torch::allclose(out.select(1, 0), own, 1e-12, 1e-12), causal);
  }
}

TEST(Dint, Gradients) {
  torch::manual_seed(5);
  for (const bool causal : {true, false}) {
    auto layer = randomised(DintAttention(small(causal)));
    const Tensor x = torch::randn({2, 5, 24}, kDouble).requires_grad_(true);
    auto leaves = parameters_of(*layer);
    leaves.emplace_back("x", x);
    const auto mask = AttentionMask().key_starts(torch::tensor({0, 2}));
    expect_gradients(leaves, [&] { return layer->forward(input_of(x, mask)).narrow(1, 2, 3); });
  }
}

TEST(Dint, HasTheParametersOfV1AndRefusesOtherKinds) {
  auto dint = DintAttention(small());
  auto v1 = MultiheadDiffAttention(small());
  EXPECT_EQ(dint->parameter_count(), v1->parameter_count());
  for (const auto& item : v1->named_parameters()) {
    ASSERT_TRUE(dint->named_parameters().contains(item.key())) << item.key();
  }
  EXPECT_REFUSAL(DintAttention(small().kind(AttentionKind::kV2)), "kind");
  EXPECT_REFUSAL(DintAttention(small().rotary(RotaryOptions()).cross_attention(true)),
                 "cross_attention");
  auto published = DintAttention(small(/*causal=*/false));
  KvCache cache;
  AttentionInput input = input_of(torch::randn({1, 2, 24}));
  input.cache = &cache;
  const torch::NoGradGuard no_grad;
  EXPECT_REFUSAL(published->forward(input), "cache");
}

TEST(SharedDiff, EqualsV1WithTheSumOfItsMatrices) {
  torch::manual_seed(6);
  const Tensor x = torch::randn({2, 7, 24}, kDouble);
  for (const HeadLayout layout : {HeadLayout::kStripes, HeadLayout::kHalves}) {
    const auto options = small().num_heads(4).num_kv_heads(2).head_dim(4).layout(layout);
    auto shared = randomised(SharedDiffAttention(options, 2));
    auto v1 = randomised(MultiheadDiffAttention(options));
    const torch::NoGradGuard no_grad;
    auto to = v1->named_parameters(), from = shared->named_parameters();
    const auto both_maps = [&](const std::string& which, int64_t heads) {
      const Tensor base = from[which + "_proj.weight"];
      const auto map = [&](const std::string& name) {  // W + U V^T, [heads, d, E]
        const Tensor w = base + from[name + ".up.weight"].matmul(from[name + ".down.weight"]);
        return w.view({heads, -1, 24});
      };
      const std::vector<Tensor> maps{map(which + "1_delta"), map(which + "2_delta")};
      return layout == HeadLayout::kHalves ? torch::cat(maps).view({-1, 24})
                                           : torch::stack(maps, 1).view({-1, 24});
    };
    to["q_proj.weight"].copy_(both_maps("q", 4));
    to["k_proj.weight"].copy_(both_maps("k", 2));
    for (const char* name : {"v_proj.weight", "out_proj.weight", "subln.weight", "lambda_q1",
                             "lambda_k1", "lambda_q2", "lambda_k2"}) {
      to[name].copy_(from[name]);
    }
    expect_close(shared->forward(input_of(x)), v1->forward(input_of(x)), "output");
  }
}

TEST(SharedDiff, LawsOfLayersGradientsAndCount) {
  torch::manual_seed(7);
  auto layer = randomised(SharedDiffAttention(small(), 2));
  const Tensor x = torch::randn({2, 8, 24}, kDouble);
  const Forward forward = forward_of(*layer);
  expect_causal(forward, x);
  expect_cached_equals_full(forward, x);
  expect_padding_and_packing(forward, x, {8, 3});
  auto leaves = parameters_of(*layer);
  expect_gradients(leaves, [&] { return forward(input_of(x)); });
  // E = 24, H = 2, Hkv = 1, d = 6: q 12, k 6, v 12, out 24 rows; deltas of rank 2; 4 d + 2 d
  const int64_t bases = 12 * 24 + 6 * 24 + 12 * 24 + 24 * 24;
  EXPECT_EQ(layer->parameter_count(), bases + 2 * 2 * (12 + 24) + 2 * 2 * (6 + 24) + 24 + 12);
}

TEST(SharedDiff, Refusals) {
  EXPECT_REFUSAL(SharedDiffAttention(small(), 0), "rank");
  EXPECT_REFUSAL(SharedDiffAttention(small(), 7), "rank");
  EXPECT_REFUSAL(SharedDiffAttention(small().kind(AttentionKind::kPlain), 2), "kind");
  ParameterNames fused;
  fused.qkv = "qkv_proj";
  EXPECT_REFUSAL(SharedDiffAttention(small().names(fused), 2), "names.qkv");
}

}  // namespace
}  // namespace diffattn::testing::dint_test
