// SPDX-License-Identifier: Apache-2.0
//
// Causality, padding, packing and KV caches: they do not change the result of a sequence.

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "diffattn/nn/block.h"
#include "diffattn/ops_layers.h"
#include "ops/layers/token_layer.h"
#include "tests/nn/layers.h"

namespace diffattn::testing::sequences_test {
namespace {

using nn::KvCache;
using Options = MultiheadDiffAttentionOptions;
using torch::Tensor;

constexpr double kRounding = 2e-6;  // float32, values of order 1

Tensor integers(std::vector<int64_t> values) { return torch::tensor(values, torch::kLong); }

Tensor random_input(int64_t batch, int64_t length) { return torch::randn({batch, length, 32}); }

TEST(Causality, LaterTokensLeaveEarlierOutputsBitIdentical) {
  const torch::NoGradGuard no_grad;
  for (const NamedOptions& kind : every_kind()) {
    auto layer = make_layer(kind.options, torch::kFloat32);
    const Tensor x = random_input(2, 40);
    for (const auto& mask : {AttentionMask(), AttentionMask().window(5)}) {
      const Tensor before = layer->forward({.x = x, .mask = mask});
      for (const int64_t t : {1, 17, 39}) {
        Tensor changed = x.clone();
        changed.select(1, t).add_(3.0);
        const Tensor after = layer->forward({.x = changed, .mask = mask});
        EXPECT_TRUE(torch::equal(after.narrow(1, 0, t), before.narrow(1, 0, t)))
            << kind.name << ", token " << t;
        EXPECT_FALSE(torch::equal(after.select(1, t), before.select(1, t))) << kind.name;
      }
    }
  }
}

TEST(Padding, LeftAndRightEqualTheSequenceAlone) {
  for (const NamedOptions& kind : every_kind()) {
    auto layer = make_layer(kind.options, torch::kFloat32);
    for (const bool causal : {true, false}) {
      const Tensor x = random_input(2, 12);
      const Tensor alone = layer->forward(
          {.x = x.narrow(0, 1, 1).narrow(1, 0, 7), .mask = AttentionMask().causal(causal)});
      const Tensor right = layer->forward(
          {.x = x, .mask = AttentionMask().causal(causal).key_lengths(integers({12, 7}))});
      expect_close(right.narrow(0, 1, 1).narrow(1, 0, 7), alone, kRounding, kind.name + ", right");
      // Left padding: the same tokens at the end of the row, with positions from the first real
      // token.
      Tensor shifted = x.clone();
      shifted[1].narrow(0, 5, 7).copy_(x[1].narrow(0, 0, 7));
      const Tensor positions =
          torch::stack({torch::arange(12), (torch::arange(12) - 5).clamp_min(0)});
      const Tensor left =
          layer->forward({.x = shifted,
                          .mask = AttentionMask().causal(causal).key_starts(integers({0, 5})),
                          .positions = positions});
      expect_close(left.narrow(0, 1, 1).narrow(1, 5, 7), alone, kRounding, kind.name + ", left");
    }
  }
}

TEST(Packing, EqualsTheSequencesAlone) {
  for (const NamedOptions& kind : every_kind()) {
    auto layer = make_layer(kind.options, torch::kFloat32);
    const Tensor x = torch::randn({13, 32});
    const Tensor out =
        layer->forward({.x = x, .mask = AttentionMask().cu_seqlens_q(integers({0, 4, 5, 13}))});
    for (const auto& [begin, count] : {std::pair{0, 4}, {4, 1}, {5, 8}}) {
      expect_close(out.narrow(0, begin, count),
                   layer->forward(x.narrow(0, begin, count).unsqueeze(0)).squeeze(0), kRounding,
                   kind.name + ", from " + std::to_string(begin));
    }
  }
}

/// Runs a prompt, single tokens and several tokens at once; then rewinds and continues with others.
TEST(Cache, DecodingEqualsTheFullForward) {
  const torch::NoGradGuard no_grad;
  for (const NamedOptions& kind : every_kind()) {
    auto layer = make_layer(kind.options, torch::kFloat32);
    const Tensor x = random_input(2, 30);
    const auto mask = AttentionMask().key_starts(integers({0, 2}));
    const Tensor full = layer->forward({.x = x, .mask = mask});
    KvCache cache(8);
    const auto step = [&](const Tensor& tokens, int64_t begin, int64_t count) {
      return layer->forward({.x = tokens.narrow(1, begin, count), .mask = mask, .cache = &cache});
    };
    for (const auto& [begin, count] : {std::pair{0, 6}, {6, 1}, {7, 1}, {8, 5}, {13, 17}}) {
      expect_close(step(x, begin, count), full.narrow(1, begin, count), kRounding,
                   kind.name + ", from " + std::to_string(begin));
    }
    EXPECT_EQ(cache.length(), 30);

    Tensor other = x.clone();
    other.narrow(1, 9, 21).normal_();
    const Tensor other_full = layer->forward({.x = other, .mask = mask});
    cache.rewind(9);
    for (const auto& [begin, count] : {std::pair{9, 1}, {10, 20}}) {
      expect_close(step(other, begin, count), other_full.narrow(1, begin, count), kRounding,
                   kind.name + ", after rewinding, from " + std::to_string(begin));
    }
  }
}

/// An attention layer that counts the tokens that a block computes with `token_layer`.
class CountedAttention : public nn::AttentionLayer {
 public:
  explicit CountedAttention(const Options& options)
      : layer_(
            register_module("layer", std::make_shared<nn::MultiheadDiffAttentionImpl>(options))) {}
  Tensor forward(const AttentionInput& input, nn::AttentionTrace* trace) override {
    return layer_->forward(input, trace);
  }
  std::optional<TokenAttention> token_attention(const AttentionInput& input) const override {
    return layer_->token_attention(input);
  }
  TokenPast token_past(const AttentionInput& input) override {
    ++tokens;
    return layer_->token_past(input);
  }
  int tokens = 0;

 private:
  std::shared_ptr<nn::MultiheadDiffAttentionImpl> layer_;
};

nn::DiffBlock make_block(std::shared_ptr<nn::AttentionLayer> attention) {
  return nn::DiffBlock(nn::DiffBlockOptions(32, 40).mlp_bias(true), std::move(attention));
}

/// Compares a block that reads six tokens and then one at a time with a full run. All rows but the
/// first have left padding. Returns the number of tokens that `token_layer` computed.
int expect_token_by_token(const NamedOptions& kind, int64_t rows, std::optional<int64_t> window) {
  torch::manual_seed(7);
  const auto attention = std::make_shared<CountedAttention>(kind.options);
  nn::DiffBlock block = make_block(attention);
  const int64_t length = 12;
  AttentionInput all{.x = torch::randn({rows, length, 32})};
  all.mask.window(window);
  const Tensor starts = integers({0, 2, 5}).narrow(0, 0, rows);
  if (rows > 1) all.mask.key_starts(starts);
  const Tensor positions = (torch::arange(length) - starts.unsqueeze(1)).clamp_min(0);
  all.positions = positions;
  const Tensor want = block->forward(all);
  KvCache cache;
  for (int64_t at = 0; at < length; at = at == 0 ? 6 : at + 1) {
    const int64_t count = at == 0 ? 6 : 1;
    AttentionInput next{.x = all.x.narrow(1, at, count).contiguous(), .mask = all.mask};
    next.positions = positions.narrow(1, at, count);
    next.cache = &cache;
    const Tensor got = block->forward(next), part = want.narrow(1, at, count);
    for (int64_t row = 0; row < rows; ++row) {  // results for padding tokens are meaningless
      const int64_t from = std::clamp<int64_t>(starts[row].item<int64_t>() - at, 0, count);
      expect_close(got[row].slice(0, from), part[row].slice(0, from), 5e-6,
                   kind.name + ", from token " + std::to_string(at));
    }
  }
  EXPECT_EQ(cache.length(), length) << kind.name;
  return attention->tokens;
}

TEST(Cache, BlocksTokenByTokenEqualAllAtOnce) {
  const torch::NoGradGuard no_grad;
  const std::set<std::string> by_kernels{"plain", "v1", "v1 halves", "v1 learned", "v2 fixed"};
  auto kinds = every_kind();
  kinds.push_back({"v1 learned", Options(kinds[0].options).lambda(nn::LambdaKind::kLearned)});
  kinds.push_back({"v2 fixed", Options(32, 4)
                                   .head_dim(4)
                                   .num_kv_heads(2)
                                   .kind(AttentionKind::kV2)
                                   .lambda(nn::LambdaKind::kFixed)
                                   .lambda_init(0.4)
                                   .rotary(kinds[0].options.rotary())});
  for (const NamedOptions& kind : kinds) {
    for (const int64_t rows : {1, 3}) {
      for (const auto window : {std::optional<int64_t>(), std::optional<int64_t>(4)}) {
        EXPECT_EQ(expect_token_by_token(kind, rows, window), by_kernels.contains(kind.name) ? 6 : 0)
            << kind.name << ", " << rows << " rows";
      }
    }
  }
}

TEST(Cache, BlocksRefuseForOneTokenWhatTheyRefuseForMany) {
  const torch::NoGradGuard no_grad;
  nn::DiffBlock block =
      make_block(std::make_shared<nn::MultiheadDiffAttentionImpl>(every_kind()[0].options));
  const Tensor x = torch::randn({3, 1, 32});
  const auto error_of = [&](const std::function<void(AttentionInput&)>& change) {
    KvCache cache;
    block->forward({.x = torch::randn({3, 4, 32}), .cache = &cache});
    AttentionInput next{.x = x, .cache = &cache};
    block->forward(next);
    change(next);
    try {
      block->forward(next);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto expect = [](const std::string& got, const std::string& name) {
    EXPECT_NE(got.find(name), std::string::npos) << got;
  };
  expect(error_of([](auto& next) { next.mask.key_starts(integers({0, 1})); }), "key_starts");
  expect(error_of([](auto& next) { next.mask.key_starts(torch::zeros({3})); }), "key_starts");
  expect(error_of([](auto& next) { next.mask.window(-1); }), "window");
  expect(error_of([&](auto& next) { next.context = x; }), "context");
  expect(error_of([](auto& next) { next.positions = integers({4, 4}); }), "positions");

  KvCache cache;
  block->forward({.x = torch::randn({3, 4, 32}), .cache = &cache});
  AttentionInput next{.x = x, .cache = &cache};
  constexpr int64_t half = 2;  // of the width of a head
  const Tensor good = torch::ones({3, 1, half}), rows = torch::ones({2, 1, half});
  const Tensor wide = torch::ones({3, 1, half + 1});
  for (const auto& [cos, sin, name] :
       {std::tuple{rows, rows, "angles.cos"}, std::tuple{wide, wide, "angles.cos"},
        std::tuple{Tensor(), good, "angles.cos"}, std::tuple{good, rows, "angles.sin"},
        std::tuple{good, good.to(torch::kFloat64), "angles.sin"}}) {
    next.angles = nn::RotaryTable{cos, sin};
    try {
      block->forward(next);
      ADD_FAILURE() << "no error that names " << name;
    } catch (const Error& error) {
      expect(error.what(), name);
    }
    EXPECT_EQ(cache.length(), 4);  // unchanged
  }
  next.angles = nn::RotaryTable{good, good};
  block->forward(next);
  EXPECT_EQ(cache.length(), 5);
}

TEST(Cache, FollowsItsRows) {
  const torch::NoGradGuard no_grad;
  auto layer = make_layer(every_kind()[0].options, torch::kFloat32);
  const Tensor x = random_input(3, 10);
  KvCache cache(4);
  layer->forward({.x = x.narrow(1, 0, 8), .cache = &cache});
  KvCache copy = cache.clone();
  const Tensor rows = integers({2, 2, 0});
  cache.select_rows(rows);
  const Tensor chosen = x.index_select(0, rows);
  const Tensor out = layer->forward({.x = chosen.narrow(1, 8, 2), .cache = &cache});
  expect_close(out, layer->forward(chosen).narrow(1, 8, 2), kRounding, "chosen rows");
  const Tensor kept = layer->forward({.x = x.narrow(1, 8, 2), .cache = &copy});
  expect_close(kept, layer->forward(x).narrow(1, 8, 2), kRounding, "the copy");
}

TEST(Cache, RefusesWhatItCannotHold) {
  KvCache cache;
  const Tensor rows = torch::randn({2, 3, 4, 8});
  EXPECT_THROW(cache.append(0, rows.clone().requires_grad_(true)), Error);
  cache.append(0, rows);
  EXPECT_THROW(cache.append(0, torch::randn({3, 3, 4, 8})), Error);
  EXPECT_THROW(cache.append(0, torch::randn({2, 3, 4, 9})), Error);
  EXPECT_THROW(cache.append(0, rows.to(torch::kFloat64)), Error);
  EXPECT_THROW(cache.rewind(4), Error);
  EXPECT_THROW(cache.rewind(-1), Error);
  EXPECT_THROW(KvCache(0), Error);
  cache.rewind(1);
  EXPECT_EQ(cache.length(), 1);
  EXPECT_TRUE(torch::equal(cache.filled(0), rows.narrow(1, 0, 1)));
  cache.clear();
  EXPECT_TRUE(cache.empty());
}

/// Cross-attention to a padded context, and with a cache that is filled once.
TEST(CrossAttention, ReadsItsContext) {
  const torch::NoGradGuard no_grad;
  for (NamedOptions kind : every_kind()) {
    kind.options.rotary({}).cross_attention(true).context_dim(20).causal(false);
    auto layer = make_layer(kind.options, torch::kFloat32);
    const Tensor x = random_input(2, 6), context = torch::randn({2, 9, 20});
    const auto mask = AttentionMask().key_lengths(integers({9, 4}));
    const Tensor full = layer->forward({.x = x, .context = context, .mask = mask});
    const Tensor alone = layer->forward(
        {.x = x.narrow(0, 1, 1), .context = context.narrow(0, 1, 1).narrow(1, 0, 4)});
    expect_close(full.narrow(0, 1, 1), alone, kRounding, kind.name + ", padded context");
    KvCache cache;
    for (int64_t t = 0; t < 6; ++t) {
      AttentionInput step{.x = x.narrow(1, t, 1), .mask = mask, .cache = &cache};
      if (t == 0) step.context = context;
      expect_close(layer->forward(step), full.narrow(1, t, 1), kRounding, kind.name + ", cached");
    }
    EXPECT_EQ(cache.length(), 9);
  }
}

TEST(Trace, HandsOutWhatWasComputed) {
  auto layer = make_layer(every_kind()[0].options, torch::kFloat32);
  const Tensor x = random_input(2, 5).requires_grad_(true);
  nn::AttentionTrace trace;
  const Tensor out = layer->forward({.x = x}, &trace);
  ASSERT_EQ(trace.calls.size(), 1U);
  const auto& h = trace.calls[0];
  const Tensor weight = layer->named_parameters()["out_proj.weight"];
  expect_close(diffattn::linear(attend(nn::Route::kFused, h).flatten(2), weight), out, 0.0,
               "output");
  const Tensor stats = attention_stats(h.q1, h.q2, h.k1, h.k2, h.lambda, h.options);
  stats.select(-1, kStatAbsSum).sum().backward();
  EXPECT_GT(x.grad().abs().max().item<float>(), 0.0F);
}

/// A GPU gives the same forward and backward results as the CPU.
TEST(Cuda, GivesWhatTheCpuGives) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  for (const NamedOptions& kind : every_kind()) {
    auto layer = make_layer(kind.options, torch::kFloat32);
    const Tensor x = random_input(2, 19);
    const auto gradients = [&](const Tensor& input) {
      layer->zero_grad();
      const Tensor out = layer->forward(input);
      out.square().sum().backward();
      std::vector<Tensor> result{out.detach().cpu()};
      for (const Tensor& p : layer->parameters()) result.push_back(p.grad().cpu());
      return result;
    };
    const auto on_cpu = gradients(x);
    layer->to(torch::kCUDA);
    const auto on_cuda = gradients(x.to(torch::kCUDA));
    for (size_t i = 0; i < on_cpu.size(); ++i) {
      expect_close(on_cuda[i], on_cpu[i], 1e-4, kind.name + ", " + std::to_string(i));
    }
  }
}

}  // namespace
}  // namespace diffattn::testing::sequences_test
