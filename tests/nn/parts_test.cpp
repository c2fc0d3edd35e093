// SPDX-License-Identifier: Apache-2.0
//
// The parts of a block: formulas, sums, order, causality and gradients.

#include "diffattn/nn/block.h"
#include "diffattn/nn/introspective_attention.h"
#include "diffattn/nn/multihead_diff_attention.h"
#include "tests/nn/layer_laws.h"

namespace diffattn::testing::parts_test {
namespace {

using namespace diffattn::nn;

const auto kDouble = torch::kFloat64;

HeadTensors random_heads(int64_t batch, int64_t length, AttentionOptions options,
                         bool gradients = false) {
  const auto make = [&](int64_t heads, int64_t width) {
    return torch::randn({batch, length, heads, width}, kDouble).requires_grad_(gradients);
  };
  return {.q1 = make(4, 3),
          .q2 = make(4, 3),
          .k1 = make(2, 3),
          .k2 = make(2, 3),
          .v = make(2, 6),
          .lambda = torch::tensor(0.6, kDouble).requires_grad_(gradients),
          .options = std::move(options)};
}

std::vector<std::pair<std::string, Tensor>> named(const HeadTensors& h) {
  return {{"q1", h.q1}, {"q2", h.q2}, {"k1", h.k1}, {"k2", h.k2}, {"lambda", h.lambda}};
}

/// Returns the difference map, [B, H, M, N].
Tensor map_of(const HeadTensors& h) {
  return attention_map(h.q1, h.q2, h.k1, h.k2, h.lambda, h.options).select(2, 2);
}

TEST(RMSNorm, RoundsWhereItSays) {
  torch::manual_seed(21);
  const auto bf16 = torch::kBFloat16;
  const Tensor x = torch::randn({64, 32}).to(bf16), w = torch::randn({32});
  const Tensor unit =
      x.to(torch::kFloat) * torch::rsqrt(x.to(torch::kFloat).square().mean(-1, true) + 1e-6);
  const auto run = [&](NormRounding rounding, torch::ScalarType weight_type) {
    RMSNorm norm(RMSNormOptions(32).eps(1e-6).rounding(rounding));
    norm->weight.set_data(w.to(weight_type));
    return norm(x);
  };
  const Tensor low = w.to(bf16);
  EXPECT_TRUE(run(NormRounding::kOnce, bf16).equal((unit * low.to(torch::kFloat)).to(bf16)));
  EXPECT_TRUE(run(NormRounding::kOnce, torch::kFloat).equal((unit * w).to(bf16)));
  EXPECT_TRUE(run(NormRounding::kBeforeWeight, bf16).equal(unit.to(bf16) * low));
  const Tensor promoted = run(NormRounding::kBeforeWeight, torch::kFloat);
  EXPECT_EQ(promoted.scalar_type(), torch::kFloat);
  EXPECT_TRUE(promoted.equal(unit.to(bf16).to(torch::kFloat) * w));
  EXPECT_FALSE(run(NormRounding::kOnce, bf16).equal(run(NormRounding::kBeforeWeight, bf16)));
}

TEST(RMSNorm, GradientsAndPlainForm) {
  torch::manual_seed(22);
  for (const NormRounding rounding : {NormRounding::kOnce, NormRounding::kBeforeWeight}) {
    auto norm = randomised(RMSNorm(RMSNormOptions(6).rounding(rounding)));
    const Tensor x = torch::randn({3, 6}, kDouble).requires_grad_(true);
    expect_gradients({{"x", x}, {"weight", norm->weight}}, [&] { return norm(x); });
    RMSNorm plain(RMSNormOptions(6).rounding(rounding).elementwise_affine(false));
    EXPECT_TRUE(plain->parameters().empty());
    expect_close(plain(x).square().mean(-1), torch::ones({3}, kDouble), "mean square", 1e-3);
  }
  EXPECT_REFUSAL(RMSNorm(RMSNormOptions(0)), "dim");
  EXPECT_REFUSAL(RMSNorm(RMSNormOptions(4).eps(-1.0)), "eps");
}

TEST(SwiGLU, MergedEqualsSplitAndGradients) {
  torch::manual_seed(23);
  auto split = randomised(SwiGLU(SwiGLUOptions(6, 10).bias(true)));
  auto merged = randomised(SwiGLU(SwiGLUOptions(6, 10).bias(true).merged(true)));
  const auto join = [](const torch::nn::Linear& to, const torch::nn::Linear& a,
                       const torch::nn::Linear& b) {
    to->weight.set_data(torch::cat({a->weight, b->weight}).detach());
    to->bias.set_data(torch::cat({a->bias, b->bias}).detach());
  };
  join(merged->gate_up_proj, split->gate_proj, split->up_proj);
  merged->down_proj = split->down_proj;
  const Tensor x = torch::randn({2, 3, 6}, kDouble).requires_grad_(true);
  expect_close(merged(x), split(x), "merged");
  const Tensor gate = split->gate_proj(x);
  expect_close(split(x), split->down_proj(gate * gate.sigmoid() * split->up_proj(x)), "formula");
  auto leaves = parameters_of(*split);
  leaves.emplace_back("x", x);
  expect_gradients(leaves, [&] { return split(x); });
  EXPECT_REFUSAL(SwiGLU(SwiGLUOptions(6, 0)), "hidden");
}

TEST(TokenWeights, KeysAddUpToOneMinusLambda) {
  torch::manual_seed(24);
  const HeadTensors h = random_heads(2, 12, {});
  const Tensor m = token_weights(h, TokenWeight::kKey);
  EXPECT_EQ(m.sizes(), torch::IntArrayRef({2, 12, 1}));
  expect_close(m.sum({1, 2}) / 12.0, torch::full({2}, 0.4, kDouble), "sum over tokens");
  expect_close(m.squeeze(-1), map_of(h).sum(2).mean(1), "column sums");

  const Tensor lengths = torch::tensor({12, 5});
  const HeadTensors padded = random_heads(2, 12, AttentionOptions().key_lengths(lengths));
  const Tensor p = token_weights(padded, TokenWeight::kKey).squeeze(-1);
  expect_close(p.sum(1) / lengths, torch::full({2}, 0.4, kDouble), "sum over real tokens");
  EXPECT_EQ(p[1].narrow(0, 5, 7).abs().max().item<double>(), 0.0) << "padding gets no attention";
}

TEST(TokenWeights, QueriesTakeTheLargestEntryOfTheirOwnRow) {
  torch::manual_seed(25);
  HeadTensors h = random_heads(2, 9, AttentionOptions().causal(true));
  const Tensor m = token_weights(h, TokenWeight::kQuery);
  const Tensor visible = torch::ones({9, 9}, torch::kBool).tril();
  const Tensor largest = std::get<0>(map_of(h).masked_fill(~visible, -INFINITY).max(-1));
  expect_close(m.squeeze(-1), largest.mean(1), "mean over heads of row maxima");
  for (Tensor* t : {&h.q1, &h.q2, &h.k1, &h.k2}) {
    *t = t->clone();
    t->select(1, 6).normal_();
  }
  const Tensor after = token_weights(h, TokenWeight::kQuery);
  EXPECT_TRUE(after.narrow(1, 0, 6).equal(m.narrow(1, 0, 6))) << "causality";
  EXPECT_FALSE(after.narrow(1, 6, 3).equal(m.narrow(1, 6, 3)));
  EXPECT_REFUSAL(token_weights(h, TokenWeight::kKey), "weight");
  HeadTensors cross = random_heads(1, 4, {});
  cross.q1 = cross.q1.narrow(1, 0, 2), cross.q2 = cross.q2.narrow(1, 0, 2);
  EXPECT_REFUSAL(token_weights(cross, TokenWeight::kKey), "weight");
}

TEST(TokenWeights, PackedEqualsEachSequenceAlone) {
  torch::manual_seed(26);
  const HeadTensors all = random_heads(1, 9, {});
  const Tensor offsets = torch::tensor({0, 4, 9});
  HeadTensors packed = all;
  for (Tensor* t : {&packed.q1, &packed.q2, &packed.k1, &packed.k2, &packed.v}) *t = t->squeeze(0);
  packed.options.cu_seqlens_q(offsets).cu_seqlens_k(offsets);
  for (const TokenWeight weight : {TokenWeight::kQuery, TokenWeight::kKey}) {
    std::vector<Tensor> alone;
    for (const auto& [begin, count] : {std::pair{0, 4}, std::pair{4, 5}}) {
      HeadTensors one = all;
      for (Tensor* t : {&one.q1, &one.q2, &one.k1, &one.k2, &one.v}) {
        *t = t->narrow(1, begin, count);
      }
      alone.push_back(token_weights(one, weight).squeeze(0));
    }
    expect_close(token_weights(packed, weight), torch::cat(alone), "packed");
  }
}

TEST(TokenFeatureEnhancer, FormulaGradientsAndRefusal) {
  torch::manual_seed(27);
  auto enhancer = randomised(TokenFeatureEnhancer(TokenFeatureEnhancerOptions(8)));
  const Tensor x = torch::randn({2, 6, 8}, kDouble).requires_grad_(true);
  const Tensor none = torch::zeros({2, 6, 1}, kDouble);
  const Tensor scale = enhancer(x, none) / x;
  EXPECT_GT(scale.min().item<double>(), 0.0);
  EXPECT_LT(scale.max().item<double>(), 1.0);
  expect_close(enhancer(x, none + 0.5), 1.5 * x * scale, "1 + m");
  for (const TokenWeight weight : {TokenWeight::kQuery, TokenWeight::kKey}) {
    const HeadTensors h = random_heads(2, 6, {}, /*gradients=*/true);
    auto leaves = named(h);
    leaves.emplace_back("x", x);
    expect_gradients(leaves, [&] { return enhancer(x, token_weights(h, weight)); });
  }
  EXPECT_REFUSAL(TokenFeatureEnhancer(TokenFeatureEnhancerOptions(8).reduction(9)), "reduction");
}

/// Returns A' by using unit vectors as values.
Tensor thresholded_map(HeadTensors h, double threshold, ThresholdMode mode) {
  const int64_t n = h.k1.size(1);
  h.v = torch::eye(n, kDouble).view({1, n, 1, n}).expand({h.k1.size(0), n, h.k1.size(2), n});
  return thresholded_attention(h, threshold, mode).transpose(1, 2);  // [B, H, M, N]
}

TEST(NoiseReduction, ThresholdFollowsTheRow) {
  torch::manual_seed(28);
  const HeadTensors h = random_heads(2, 12, AttentionOptions().causal(true));
  const Tensor a = map_of(h), peak = std::get<0>(a.abs().max(-1, true));
  const Tensor hard = thresholded_map(h, 0.3, ThresholdMode::kHard);
  const Tensor kept = hard != 0;
  expect_close(hard, a.masked_fill(a.abs() <= 0.3 * peak, 0.0), "hard");
  EXPECT_TRUE(kept.gather(-1, a.abs().argmax(-1, true)).all().item<bool>()) << "argmax is kept";
  EXPECT_TRUE((~kept & (a != 0)).any().item<bool>()) << "something is removed";
  const Tensor soft = thresholded_map(h, 0.3, ThresholdMode::kSoft);
  expect_close(soft.abs(), (a.abs() - 0.3 * peak).clamp_min(0.0), "soft");
  EXPECT_FALSE((soft * a < 0).any().item<bool>()) << "signs are kept";
  EXPECT_TRUE(soft.argmax(-1).equal(a.argmax(-1))) << "the largest entry stays the largest";
  for (const ThresholdMode mode : {ThresholdMode::kHard, ThresholdMode::kSoft}) {
    expect_close(thresholded_map(h, 0.0, mode), a, "threshold 0");
  }
  // Long uniform rows: a fixed threshold of 0.1 would remove all entries.
  HeadTensors even = random_heads(1, 40, {});
  even.q1 = torch::zeros_like(even.q1), even.q2 = torch::zeros_like(even.q2);
  EXPECT_TRUE((thresholded_map(even, 0.9, ThresholdMode::kHard) != 0).all().item<bool>());
}

TEST(NoiseReduction, HardThresholdPassesGradientsStraightThrough) {
  torch::manual_seed(29);
  const HeadTensors h = random_heads(2, 8, AttentionOptions().causal(true), /*gradients=*/true);
  const Tensor weights = torch::randn({2, 8, 4, 6}, kDouble);
  const std::vector<Tensor> leaves{h.q1, h.q2, h.k1, h.k2, h.lambda, h.v};
  const auto gradients = [&](const Tensor& out) {
    return torch::autograd::grad({(out * weights).sum()}, leaves);
  };
  const auto whole = gradients(attention(h.q1, h.q2, h.k1, h.k2, h.v, h.lambda, h.options));
  const auto hard = gradients(thresholded_attention(h, 0.4, ThresholdMode::kHard));
  for (size_t i = 0; i < 5; ++i) {
    expect_close(hard[i], whole[i], "as if nothing were removed, " + std::to_string(i), 1e-11);
  }
  const Tensor a = thresholded_map(h, 0.4, ThresholdMode::kHard);  // dv uses the remaining entries
  const Tensor dv = a.transpose(-1, -2).matmul(weights.transpose(1, 2)).transpose(1, 2);
  expect_close(hard[5], dv.unflatten(2, {2, 2}).sum(3), "values");
}

TEST(NoiseReduction, BlocksOfRowsPackingAndGradients) {
  torch::manual_seed(30);
  const HeadTensors h = random_heads(2, 9, AttentionOptions().causal(true), /*gradients=*/true);
  auto leaves = named(h);
  leaves.emplace_back("v", h.v);
  std::vector<Tensor> inputs;
  for (const auto& [name, leaf] : leaves) inputs.push_back(leaf);
  const Tensor weights = torch::randn({2, 9, 4, 6}, kDouble);
  const auto run = [&](int64_t block_bytes) {
    const Tensor out = thresholded_attention(h, 0.3, ThresholdMode::kSoft, block_bytes);
    auto found = torch::autograd::grad({(out * weights).sum()}, inputs);
    found.push_back(out);
    return found;
  };
  const auto whole = run(1 << 20), two_rows = run(2 * 2 * 4 * 9 * 8);
  for (size_t i = 0; i < whole.size(); ++i) expect_close(two_rows[i], whole[i], "blocks", 1e-11);
  expect_gradients(
      leaves, [&] { return thresholded_attention(h, 0.3, ThresholdMode::kSoft); }, 1e-6);

  HeadTensors packed = h;
  for (Tensor* t : {&packed.q1, &packed.q2, &packed.k1, &packed.k2, &packed.v}) {
    *t = t->detach().flatten(0, 1);
  }
  const Tensor offsets = torch::tensor({0, 9, 18});
  packed.options.cu_seqlens_q(offsets).cu_seqlens_k(offsets);
  expect_close(thresholded_attention(packed, 0.3, ThresholdMode::kSoft), whole.back().flatten(0, 1),
               "packed");
}

TEST(NoiseReduction, MasksAndRowsThatSeeNothing) {
  torch::manual_seed(38);
  Tensor mask = torch::randn({8, 8}, kDouble);
  mask[2].fill_(-INFINITY);
  mask[5].narrow(0, 3, 5).fill_(-INFINITY);
  const auto options = AttentionOptions().mask(mask).key_lengths(torch::tensor({8, 6}));
  const HeadTensors h = random_heads(2, 8, options, /*gradients=*/true);
  const Tensor out = thresholded_attention(h, 0.0, ThresholdMode::kSoft);
  expect_close(out, attention(h.q1, h.q2, h.k1, h.k2, h.v, h.lambda, options), "threshold 0");
  EXPECT_EQ(out.select(1, 2).abs().max().item<double>(), 0.0) << "a row that sees nothing";
  for (const auto mode : {ThresholdMode::kHard, ThresholdMode::kSoft}) {
    const auto found = torch::autograd::grad({thresholded_attention(h, 0.3, mode).square().sum()},
                                             {h.q1, h.k1, h.v, h.lambda});
    for (const Tensor& gradient : found) {
      EXPECT_TRUE(torch::isfinite(gradient).all().item<bool>());
    }
    EXPECT_EQ(found[0].select(1, 2).abs().max().item<double>(), 0.0);
  }
}

TEST(NoiseReduction, ModuleAndRefusals) {
  torch::manual_seed(31);
  auto layer = randomised(NoiseReduction(NoiseReductionOptions(10).inner(24)));
  const HeadTensors h = random_heads(2, 5, AttentionOptions().causal(true));
  const Tensor x = torch::randn({2, 5, 10}, kDouble);
  const Tensor merged = thresholded_attention(h, 0.1, ThresholdMode::kHard).flatten(-2);
  const Tensor filtered = layer->narrow(torch::gelu(layer->widen(layer->norm(merged))));
  expect_close(layer(x, h), x + filtered, "formula");
  EXPECT_REFUSAL(NoiseReduction(NoiseReductionOptions(8).threshold(1.0)), "threshold");
  EXPECT_REFUSAL(NoiseReduction(NoiseReductionOptions(8))(x, h), "inner");
}

TEST(InformationFlowGate, FavoursTheNewAtFirst) {
  torch::manual_seed(32);
  InformationFlowGate gate(InformationFlowGateOptions(16));
  const Tensor x = torch::randn({4, 8, 16}), previous = torch::randn({4, 8, 16});
  const Tensor g = (gate(x, previous) - previous) / (x - previous);
  EXPECT_GT(g.median().item<double>(), 0.6);
  expect_close(gate(x, x), x, "nothing to choose");
  const torch::NoGradGuard no_grad;
  gate->gate->weight.zero_();
  const double share = 1.0 / (1.0 + std::exp(-1.0));
  expect_close(gate(x, previous), share * x + (1.0 - share) * previous, "bias alone", 1e-6);
  gate->gate->bias.fill_(100.0);
  expect_close(gate(x, previous), x, "open", 1e-6);
}

TEST(InformationFlowGate, ReadsAttentionWhenAsked) {
  torch::manual_seed(33);
  auto gate = randomised(InformationFlowGate(InformationFlowGateOptions(4).attention_input(true)));
  const Tensor x = torch::randn({2, 3, 4}, kDouble).requires_grad_(true);
  const Tensor previous = torch::randn({2, 3, 4}, kDouble).requires_grad_(true);
  const Tensor m = torch::rand({2, 3, 1}, kDouble).requires_grad_(true);
  auto leaves = parameters_of(*gate);
  leaves.insert(leaves.end(), {{"x", x}, {"previous", previous}, {"m", m}});
  expect_gradients(leaves, [&] { return gate(x, previous, m); });
  EXPECT_REFUSAL(gate(x, previous), "m");
  InformationFlowGate plain(InformationFlowGateOptions(4));
  EXPECT_REFUSAL(plain(x, previous, m), "m");
}

std::shared_ptr<AttentionLayer> small_attention(bool causal = true) {
  return MultiheadDiffAttention(MultiheadDiffAttentionOptions(16, 2).causal(causal).rotary(
                                    RotaryOptions().style(RotaryStyle::kHalfSplit)))
      .ptr();
}

DiffBlockOptions every_part() {
  return DiffBlockOptions(16, 20)
      .enhancer(TokenFeatureEnhancerOptions(16))
      .noise_reduction(NoiseReductionOptions(16).mode(ThresholdMode::kSoft))
      .gate(InformationFlowGateOptions(16).attention_input(true));
}

TEST(DiffBlock, WithoutPartsIsALlamaLayer) {
  torch::manual_seed(34);
  auto block = randomised(DiffBlock(DiffBlockOptions(16, 20), small_attention()));
  const Tensor x = torch::randn({2, 5, 16}, kDouble);
  const Tensor h = x + block->self_attn->forward(input_of(block->input_layernorm(x)));
  expect_close(block->forward(x), h + block->mlp(block->post_attention_layernorm(h)), "formula");
  for (const char* name : {"input_layernorm.weight", "self_attn.q_proj.weight",
                           "post_attention_layernorm.weight", "mlp.gate_proj.weight"}) {
    EXPECT_TRUE(block->named_parameters().contains(name)) << name;
  }
}

TEST(DiffBlock, EveryPartChangesTheResultAndKeepsTheLaws) {
  torch::manual_seed(35);
  const Tensor x = torch::randn({2, 9, 16}, kDouble);
  auto block = randomised(DiffBlock(every_part(), small_attention()));
  const Forward forward = [&](const AttentionInput& input) { return block->forward(input); };
  expect_causal(forward, x);
  expect_cached_equals_full(forward, x);
  expect_padding_and_packing(forward, x, {9, 4});
  const Tensor all = block->forward(x);
  const auto without = [&](auto part) {
    auto fewer = DiffBlock(block->options, block->self_attn);
    fewer->input_layernorm = block->input_layernorm;
    fewer->post_attention_layernorm = block->post_attention_layernorm;
    fewer->mlp = block->mlp;
    fewer->enhancer = block->enhancer;
    fewer->noise_reduction = block->noise_reduction;
    fewer->gate = block->gate;
    part(*fewer);
    return fewer->forward(x);
  };
  expect_close(without([](DiffBlockImpl&) {}), all, "the same parts");
  EXPECT_FALSE(torch::allclose(without([](auto& b) { b.enhancer = nullptr; }), all));
  EXPECT_FALSE(torch::allclose(without([](auto& b) { b.noise_reduction = nullptr; }), all));
  EXPECT_FALSE(torch::allclose(without([](auto& b) { b.gate = nullptr; }), all));
}

TEST(DiffBlock, GradientsThroughEveryPart) {
  torch::manual_seed(36);
  const Tensor x = torch::randn({2, 5, 16}, kDouble).requires_grad_(true);
  for (const bool causal : {true, false}) {
    auto options = every_part().token_weight(causal ? TokenWeight::kQuery : TokenWeight::kKey);
    auto block = randomised(DiffBlock(options, small_attention(causal)));
    auto leaves = parameters_of(*block);
    leaves.emplace_back("x", x);
    expect_gradients(
        leaves, [&] { return block->forward(x); }, 1e-6);
  }
}

TEST(DiffBlock, AddsNoSecondResidualUnlessAsked) {
  torch::manual_seed(37);
  const auto attention =
      randomised(IntrospectiveAttention(IntrospectiveAttentionOptions(16, 2))).ptr();
  const Tensor x = torch::randn({1, 4, 16}, kDouble);
  for (const std::optional<bool> asked : {std::optional<bool>(), std::optional<bool>(true)}) {
    auto block = DiffBlock(DiffBlockOptions(16, 20).attention_residual(asked), attention);
    block->to(kDouble);
    const Tensor a = attention->forward(block->input_layernorm(x));
    const Tensor h = asked.value_or(false) ? x + a : a;
    expect_close(block->forward(x), h + block->mlp(block->post_attention_layernorm(h)), "residual");
  }
}

TEST(DiffBlock, Refusals) {
  EXPECT_REFUSAL(DiffBlock(DiffBlockOptions(16, 20), nullptr), "attention");
  EXPECT_REFUSAL(
      DiffBlock(DiffBlockOptions(16, 20).gate(InformationFlowGateOptions(8)), small_attention()),
      "gate");
  auto causal = DiffBlock(every_part().token_weight(TokenWeight::kKey), small_attention());
  EXPECT_REFUSAL(causal->forward(torch::randn({1, 3, 16})), "weight");
}

}  // namespace
}  // namespace diffattn::testing::parts_test
