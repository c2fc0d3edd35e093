// SPDX-License-Identifier: Apache-2.0
//
// Introspective attention: comparison of its three schedules with a dense softmax over the whole
// bank, the path weights, and the laws of attention layers.

#include "diffattn/nn/introspective_attention.h"
#include "tests/nn/layer_laws.h"

namespace diffattn::testing::introspective_test {
namespace {

using namespace diffattn::nn;

const auto kDouble = torch::kFloat64;
const std::vector<BankSchedule> kSchedules{BankSchedule::kNaive, BankSchedule::kFlash1,
                                           BankSchedule::kFlash2};

/// Computes the bank attention with all scores in memory, for keys in the order [K_0 .. K_i]. All
/// paths have the mask `visible`.
Tensor dense_bank(const Tensor& q, const std::vector<Tensor>& ks, const std::vector<Tensor>& vs,
                  const Tensor& visible) {
  const int64_t group = q.size(2) / ks[0].size(2);
  const auto heads = [&](const std::vector<Tensor>& paths) {
    return torch::cat(paths, 1).transpose(1, 2).repeat_interleave(group, 1);
  };
  const Tensor s = q.transpose(1, 2).matmul(heads(ks).transpose(-1, -2)) /
                   std::sqrt(static_cast<double>(q.size(3)));
  const Tensor tiles = torch::cat(std::vector<Tensor>(ks.size(), visible), -1);
  return s.masked_fill(~tiles, -INFINITY).softmax(-1).matmul(heads(vs)).transpose(1, 2);
}

struct Bank {
  Tensor q;
  std::vector<Tensor> ks, vs;

  Bank(int64_t batch, int64_t rows, int64_t tokens, int64_t paths, bool gradients) {
    const auto make = [&](int64_t length, int64_t heads) {
      return torch::randn({batch, length, heads, 4}, kDouble).requires_grad_(gradients);
    };
    q = make(rows, 4);
    for (int64_t j = 0; j < paths; ++j) {
      ks.push_back(make(tokens, 2));
      vs.push_back(make(tokens, 2));
    }
  }
  std::vector<Tensor> leaves() const {
    std::vector<Tensor> all{q};
    all.insert(all.end(), ks.begin(), ks.end());
    all.insert(all.end(), vs.begin(), vs.end());
    return all;
  }
};

/// Compares outputs and gradients of every schedule with the dense bank.
void expect_equal_schedules(const Bank& bank, const AttentionOptions& options,
                            const Tensor& visible, const std::string& what) {
  const Tensor want = dense_bank(bank.q, bank.ks, bank.vs, visible);
  const Tensor weights = torch::randn_like(want);
  const auto gradients = torch::autograd::grad({(want * weights).sum()}, bank.leaves());
  for (const BankSchedule schedule : kSchedules) {
    const std::string which = what + ", schedule " + std::to_string(static_cast<int>(schedule));
    const Tensor got = bank_attention(schedule, bank.q, bank.ks, bank.vs, options);
    expect_close(got, want, which);
    const auto found = torch::autograd::grad({(got * weights).sum()}, bank.leaves());
    for (size_t i = 0; i < found.size(); ++i) {
      expect_close(found[i], gradients[i], which + ", gradient " + std::to_string(i), 1e-11);
    }
  }
}

TEST(Introspective, SchedulesEqualTheDenseBank) {
  torch::manual_seed(11);
  const Tensor n = torch::arange(10).view({1, -1}), m = torch::arange(10).view({-1, 1});
  for (const int64_t paths : {2, 3}) {
    const Bank bank(2, 10, 10, paths, /*gradients=*/true);
    const Tensor all = torch::ones({10, 10}, torch::kBool);
    expect_equal_schedules(bank, {}, all, "bidirectional");
    expect_equal_schedules(bank, AttentionOptions().causal(true), n <= m, "causal");
    expect_equal_schedules(bank, AttentionOptions().window(3), (n <= m) & (n > m - 3), "window");
    expect_equal_schedules(bank, AttentionOptions().window(3, 2), (n <= m + 2) & (n >= m - 3),
                           "window of two bounds");
    const Tensor given = (torch::rand({2, 1, 10, 10}) < 0.5) | (n == m);
    expect_equal_schedules(bank, AttentionOptions().causal(true).mask(given), (n <= m) & given,
                           "boolean mask");
    const Tensor lengths = torch::tensor({10, 7});
    expect_equal_schedules(bank, AttentionOptions().key_lengths(lengths),
                           (n < lengths.view({2, 1, 1, 1})).expand({2, 1, 10, 10}), "lengths");
    const Bank steps(2, 2, 10, paths, true);
    expect_equal_schedules(steps, AttentionOptions().causal(true), n <= m.narrow(0, 8, 2), "steps");
  }
}

TEST(Introspective, BlocksOfRows) {
  torch::manual_seed(12);
  const Bank bank(1, 520, 530, 2, /*gradients=*/false);  // three blocks, the last one short
  const Tensor n = torch::arange(530).view({1, -1}), place = torch::arange(10, 530).view({-1, 1});
  const auto options = AttentionOptions().causal(true);
  const Tensor want = dense_bank(bank.q, bank.ks, bank.vs, n <= place);
  expect_close(bank_attention(BankSchedule::kFlash1, bank.q, bank.ks, bank.vs, options), want,
               "flash 1");
  const Tensor starts = torch::tensor({300});
  expect_close(bank_attention(BankSchedule::kFlash1, bank.q, bank.ks, bank.vs,
                              AttentionOptions().causal(true).key_starts(starts))
                   .narrow(1, 290, 230),
               dense_bank(bank.q, bank.ks, bank.vs, (n <= place) & (n >= 300)).narrow(1, 290, 230),
               "flash 1, left padding");
}

IntrospectiveAttentionOptions small() {
  return IntrospectiveAttentionOptions(16, 4).num_kv_heads(2);
}

TEST(Introspective, LawsOfLayers) {
  torch::manual_seed(13);
  const Tensor x = torch::randn({2, 9, 16}, kDouble);
  for (const BankSchedule schedule : kSchedules) {
    for (const bool per_head : {false, true}) {
      auto layer =
          randomised(IntrospectiveAttention(small().schedule(schedule).per_head_norm(per_head)));
      const Forward forward = forward_of(*layer);
      expect_causal(forward, x);
      expect_cached_equals_full(forward, x);
      expect_cached_equals_full(forward, x, AttentionMask().key_starts(torch::tensor({0, 2})));
      expect_padding_and_packing(forward, x, {9, 4});
    }
    auto windowed = randomised(IntrospectiveAttention(small().schedule(schedule).window(3)));
    expect_causal(forward_of(*windowed), x);
    expect_cached_equals_full(forward_of(*windowed), x);
    expect_padding_and_packing(forward_of(*windowed), x, {9, 4});
    auto bidirectional =
        randomised(IntrospectiveAttention(small().schedule(schedule).causal(false)));
    expect_padding_and_packing(forward_of(*bidirectional), x, {9, 4});
  }
}

TEST(Introspective, LaterPathsReadEarlierOnes) {
  torch::manual_seed(14);
  auto layer = randomised(IntrospectiveAttention(small().path_weights(PathWeights::kSigmoid)));
  const Tensor x = torch::randn({1, 6, 16}, kDouble);
  const torch::NoGradGuard no_grad;
  // If only the last path has weight, the result depends on the keys of path 0. If only path 0 has
  // weight, it does not depend on the keys of the last path.
  const auto only = [&](size_t path) {
    for (size_t i = 0; i < 3; ++i) layer->lambda_weights[i].fill_(i == path ? 0.0 : -1000.0);
  };
  const auto changes = [&](size_t counted, size_t changed) {
    only(counted);
    const Tensor before = layer->forward(x);
    Tensor weight = layer->paths[changed]->k_proj->weight;
    const Tensor old = weight.clone();
    weight.normal_();
    const bool result = !torch::allclose(layer->forward(x), before, 1e-9, 1e-9);
    weight.copy_(old);
    return result;
  };
  EXPECT_TRUE(changes(2, 0));
  EXPECT_TRUE(changes(2, 1));
  EXPECT_TRUE(changes(2, 2));
  EXPECT_TRUE(changes(0, 0));
  EXPECT_FALSE(changes(0, 1));
  EXPECT_FALSE(changes(1, 2));
}

class Warnings : public c10::WarningHandler {
 public:
  Warnings() : replaced_(c10::WarningUtils::get_warning_handler()) {
    c10::WarningUtils::set_warning_handler(this);
  }
  ~Warnings() override { c10::WarningUtils::set_warning_handler(replaced_); }
  void process(const c10::Warning& warning) override { text += warning.msg(); }
  std::string text;

 private:
  c10::WarningHandler* replaced_;
};

TEST(Introspective, PathWeightsAreWhatTheyAreCalled) {
  const Warnings warnings;  // records the warning of the literal form
  const auto lambda = [](PathWeights kind, std::vector<double> w) {
    auto layer =
        IntrospectiveAttention(small().path_weights(kind).paths(static_cast<int64_t>(w.size())));
    layer->to(kDouble);
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < w.size(); ++i) layer->lambda_weights[i].fill_(w[i]);
    return layer->lambda();
  };
  const auto numbers = [](std::vector<double> v) { return torch::tensor(v, kDouble); };
  expect_close(lambda(PathWeights::kLayerNorm, {0, 0, 0}), torch::full({3}, 1.0 / 3, kDouble),
               "a mean at first", 1e-7);
  expect_close(lambda(PathWeights::kLayerNormLiteral, {0.3, 0.3, 0.3}), numbers({0, 0, 0}),
               "equal weights");
  expect_close(lambda(PathWeights::kLayerNormLiteral, {4, -4}), numbers({1, -1}),
               "two paths saturate: a differential attention", 1e-4);
  EXPECT_NEAR(lambda(PathWeights::kLayerNormLiteral, {1, -2, 0.5}).sum().item<double>(), 0, 1e-12);
  expect_close(lambda(PathWeights::kSoftmax, {0, std::log(2.0), 0}), numbers({0.25, 0.5, 0.25}),
               "softmax");
  expect_close(lambda(PathWeights::kSigmoid, {0, std::log(3.0), 0}), numbers({0.5, 0.75, 0.5}),
               "sigmoid");
}

TEST(Introspective, LiteralWeightsWarnAndStartAsANormOfTheInput) {
  torch::manual_seed(15);
  Warnings warnings;
  IntrospectiveAttention ordinary(small());
  EXPECT_EQ(warnings.text, "");
  IntrospectiveAttention layer(
      small().path_weights(PathWeights::kLayerNormLiteral).out_proj(false));
  EXPECT_NE(warnings.text.find("path_weights"), std::string::npos) << warnings.text;
  layer->to(kDouble);
  const Tensor x = torch::randn({1, 5, 16}, kDouble);
  const Tensor y = layer->forward(x);
  expect_close(y, x * torch::rsqrt(x.square().mean(-1, true) + 1e-5), "norm of x");
  y.square().sum().backward();
  EXPECT_EQ(layer->paths[0]->q_proj->weight.grad().abs().max().item<double>(), 0.0);
}

TEST(Introspective, Gradients) {
  torch::manual_seed(16);
  const Tensor x = torch::randn({2, 5, 16}, kDouble).requires_grad_(true);
  for (const BankSchedule schedule : kSchedules) {
    auto layer = randomised(IntrospectiveAttention(small().schedule(schedule)));
    auto leaves = parameters_of(*layer);
    leaves.emplace_back("x", x);
    expect_gradients(leaves, [&] { return layer->forward(x); });
  }
  auto packed = randomised(IntrospectiveAttention(small()));
  const auto mask = AttentionMask().cu_seqlens_q(torch::tensor({0, 3, 3, 10}));
  expect_gradients(parameters_of(*packed),
                   [&] { return packed->forward(input_of(x.flatten(0, 1), mask)); });
}

TEST(Introspective, NamesAndCount) {
  IntrospectiveAttention layer(small());
  const auto named = layer->named_parameters();
  for (const char* name :
       {"P_layers.0.q_proj.weight", "P_layers.2.v_proj.weight", "P_layers.1.layer_norm.weight",
        "lambda_weights.2", "out_proj.weight", "final_layer_norm.weight", "alpha"}) {
    EXPECT_TRUE(named.contains(name)) << name;
  }
  // Three paths: q 16x16, k and v 8x16, norm 16, w 1. Layer: out 16x16, norm 16, alpha 1, path
  // norm.
  EXPECT_EQ(layer->parameter_count(), 3 * (256 + 128 + 128 + 16 + 1) + 256 + 16 + 1 + 2 * 3);
}

TEST(Introspective, TracesDescribeTheJointMap) {
  torch::manual_seed(17);
  auto layer = randomised(IntrospectiveAttention(small()));
  const Tensor x = torch::randn({1, 6, 16}, kDouble);
  AttentionTrace trace;
  layer->forward(input_of(x), &trace);
  ASSERT_EQ(trace.calls.size(), 3u);
  const HeadTensors& last = trace.calls[2];
  const Tensor stats =
      attention_stats(last.q1, last.q2, last.k1, last.k2, last.lambda, last.options);
  const Tensor visible = stats.select(-1, kStatVisible).select(-1, 0).squeeze(0);
  expect_close(visible, 3.0 * torch::arange(1, 7, kDouble), "columns of three paths");
  expect_close(stats.select(-1, kStatAbsSum), torch::ones({1, 6, 4}, kDouble), "row sums");
}

TEST(Introspective, Refusals) {
  EXPECT_REFUSAL(IntrospectiveAttention(small().paths(1)), "paths");
  EXPECT_REFUSAL(IntrospectiveAttention(small().num_heads(5)), "num_heads");
  EXPECT_REFUSAL(IntrospectiveAttention(small().num_kv_heads(3)), "num_kv_heads");
  EXPECT_REFUSAL(IntrospectiveAttention(small().causal(false).window(2)), "window");
  IntrospectiveAttention layer(small());
  AttentionInput input = input_of(torch::randn({1, 3, 16}));
  input.context = input.x;
  EXPECT_REFUSAL(layer->forward(input), "context");
}

}  // namespace
}  // namespace diffattn::testing::introspective_test
