// SPDX-License-Identifier: Apache-2.0
//
// Every route gives the same output and the same gradients within 1e-12 in float64, for every kind
// of attention and every kind of mask.

#include "diffattn/nn/route.h"

#include <ATen/Context.h>

#include <algorithm>

#include "tests/nn/layers.h"

namespace diffattn::testing::routes_test {
namespace {

using nn::Route;
using torch::Tensor;

// We compare each route with the fused one, so that any two agree within 1e-12.
constexpr double kHalfTolerance = 5e-13;
constexpr int64_t kBatch = 2, kLength = 9, kWidth = 32, kHeads = 4;

struct Case {
  std::string name;
  AttentionInput input;
  std::vector<Tensor> leaves;  // in addition to the parameters
};

Tensor integers(std::vector<int64_t> values) { return torch::tensor(values, torch::kLong); }

/// Returns a case for every kind of mask. Cases share no tensors.
std::vector<Case> every_mask() {
  torch::manual_seed(3);
  const auto random = [](std::vector<int64_t> sizes) {
    return torch::randn(sizes, torch::kFloat64).requires_grad_(true);
  };
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, const AttentionMask& mask) {
    Case c{name, {.x = random({kBatch, kLength, kWidth}), .mask = mask}, {}};
    c.leaves = {c.input.x};
    if (mask.mask() && mask.mask()->requires_grad()) c.leaves.push_back(*mask.mask());
    cases.push_back(c);
  };
  add("causal", {});
  add("bidirectional", AttentionMask().causal(false));
  add("window", AttentionMask().window(3));
  add("left padding", AttentionMask().key_starts(integers({0, 4})));
  add("right padding", AttentionMask().causal(false).key_lengths(integers({9, 5})));
  add("boolean", AttentionMask().causal(false).mask(torch::rand({kLength, kLength}) > 0.4));
  add("boolean per head",
      AttentionMask().mask(torch::rand({kBatch, kHeads, kLength, kLength}) > 0.6));
  add("additive", AttentionMask().mask(random({kBatch, 1, kLength, kLength})));
  const Tensor biased = torch::randn({1, kHeads, 1, kLength}, torch::kFloat64)
                            .masked_fill(torch::rand({kLength}) > 0.7, -INFINITY)
                            .requires_grad_(true);
  add("additive with -inf", AttentionMask().mask(biased).key_starts(integers({1, 0})));
  Case packed{"packed",
              {.x = random({kLength + 5, kWidth}),
               .mask = AttentionMask().cu_seqlens_q(integers({0, 4, 4, 5, kLength + 5}))},
              {}};
  packed.leaves = {packed.input.x};
  cases.push_back(packed);
  return cases;
}

struct Result {
  Tensor out;
  std::vector<Tensor> gradients;
};

Result run(MultiheadDiffAttention& layer, const Case& c, Route route) {
  layer->set_route(route);
  const Tensor out = layer->forward(c.input);
  torch::manual_seed(11);
  auto leaves = layer->parameters();
  leaves.insert(leaves.end(), c.leaves.begin(), c.leaves.end());
  return {out, torch::autograd::grad({out}, leaves, {torch::randn_like(out)})};
}

void expect_routes_agree(const NamedOptions& kind) {
  auto layer = make_layer(kind.options, torch::kFloat64);
  for (const Case& c : every_mask()) {
    const Result fused = run(layer, c, Route::kFused);
    EXPECT_GT(fused.out.abs().max().item<double>(), 1e-3) << kind.name << ", " << c.name;
    for (const Route route : nn::routes()) {
      const std::string what = kind.name + ", " + c.name + ", " + route_name(route);
      const Result other = run(layer, c, route);
      expect_close(other.out, fused.out, kHalfTolerance, what);
      for (size_t i = 0; i < fused.gradients.size(); ++i) {
        expect_close(other.gradients[i], fused.gradients[i], kHalfTolerance,
                     what + ": gradient " + std::to_string(i));
      }
    }
  }
}

class Routes : public ::testing::TestWithParam<size_t> {};

TEST_P(Routes, AgreeForEveryMask) { expect_routes_agree(every_kind()[GetParam()]); }

INSTANTIATE_TEST_SUITE_P(Kinds, Routes, ::testing::Range<size_t>(0, every_kind().size()),
                         [](const auto& info) {
                           std::string name = every_kind()[info.param].name;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

/// Steps of several tokens on a filled cache: every route aligns the rows with the end of the keys.
TEST(RoutesOnACache, AgreeWithTheFullForward) {
  const torch::NoGradGuard no_grad;
  for (const NamedOptions& kind : every_kind()) {
    auto layer = make_layer(kind.options, torch::kFloat64);
    const Tensor x = torch::randn({kBatch, kLength, kWidth}, torch::kFloat64);
    for (const AttentionMask& mask : {AttentionMask(), AttentionMask().window(3),
                                      AttentionMask().key_starts(integers({0, 3}))}) {
      layer->set_route(Route::kFused);
      const Tensor full = layer->forward({.x = x, .mask = mask});
      for (const Route route : nn::routes()) {
        layer->set_route(route);
        nn::KvCache cache(4);
        for (const auto& [begin, count] : {std::pair{0, 3}, {3, 4}, {7, 1}, {8, 1}}) {
          const Tensor out =
              layer->forward({.x = x.narrow(1, begin, count), .mask = mask, .cache = &cache});
          expect_close(out, full.narrow(1, begin, count), 1e-12,
                       kind.name + ", " + route_name(route) + ", from " + std::to_string(begin));
        }
      }
    }
  }
}

TEST(RoutesOfAWindow, AgreeForBoundsOnBothSides) {
  const torch::NoGradGuard no_grad;
  for (const NamedOptions& kind : every_kind()) {
    auto layer = make_layer(kind.options, torch::kFloat64);
    const Tensor x = torch::randn({kBatch, kLength, kWidth}, torch::kFloat64);
    nn::HeadTensors heads = layer->head_tensors({.x = x, .mask = AttentionMask().causal(false)});
    for (const auto& [left, right] : {std::pair{2, 3}, {-1, 1}, {4, -1}, {0, 0}}) {
      heads.options.window(left, right);
      const Tensor fused = attend(Route::kFused, heads);
      for (const Route route : nn::routes()) {
        expect_close(attend(route, heads), fused, 1e-12,
                     kind.name + ", " + route_name(route) + ", (" + std::to_string(left) + ", " +
                         std::to_string(right) + ")");
      }
    }
  }
}

/// Rows that see no column are 0 and have no gradient, on every route.
TEST(RoutesOfEmptyRows, GiveZero) {
  for (const NamedOptions& kind : every_kind()) {
    auto layer = make_layer(kind.options, torch::kFloat64);
    const Tensor x = torch::randn({kBatch, kLength, kWidth}, torch::kFloat64).requires_grad_(true);
    const auto mask = AttentionMask().key_starts(integers({0, 5}));
    for (const Route route : nn::routes()) {
      const Tensor out = attend(route, layer->head_tensors({.x = x, .mask = mask}));
      const Tensor empty = out[1].narrow(0, 0, 5);
      EXPECT_EQ(empty.abs().max().item<double>(), 0.0) << kind.name << ", " << route_name(route);
      const Tensor grad = torch::autograd::grad({empty.sum()}, {x})[0];
      EXPECT_EQ(grad.abs().max().item<double>(), 0.0) << kind.name << ", " << route_name(route);
    }
  }
}

/// Runs each family of torch's kernels alone. Consecutive calls have equal shapes, and each must
/// give the gradients of its own operands.
TEST(RoutesOnCuda, GiveTheGradientsOfTheFusedRoute) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  torch::manual_seed(5);
  const auto random = [](int64_t width) {
    return torch::randn({2, 256, 2, width}, torch::dtype(torch::kBFloat16).device(torch::kCUDA))
        .requires_grad_(true);
  };
  nn::HeadTensors heads{random(64), random(64), random(64), random(64), random(128)};
  heads.lambda = torch::full({}, 0.5, torch::device(torch::kCUDA));
  heads.options.causal(true);
  const std::vector<Tensor> leaves{heads.q1, heads.q2, heads.k1, heads.k2, heads.v};
  const Tensor dout = torch::randn_like(heads.v);
  const auto gradients = [&](Route route) {
    return torch::autograd::grad({attend(route, heads)}, leaves, {dout});
  };
  const auto fused = gradients(Route::kFused);
  at::Context& context = at::globalContext();
  int computed = 0;
  for (int kernels = 0; kernels < 3; ++kernels) {
    context.setSDPUseCuDNN(kernels == 0);
    context.setSDPUseFlash(kernels == 1);
    context.setSDPUseMemEfficient(kernels == 2);
    context.setSDPUseMath(false);
    for (const Route route : nn::routes()) {
      std::vector<Tensor> other;
      try {
        other = gradients(route);
      } catch (const c10::Error&) {
        continue;  // not every family supports every shape
      }
      ++computed;
      for (size_t i = 0; i < fused.size(); ++i) {
        const double error = ((other[i] - fused[i]).norm() / fused[i].norm()).item<double>();
        EXPECT_LT(error, 0.03) << route_name(route) << ", kernels " << kernels << ", gradient "
                               << i;
      }
    }
  }
  context.setSDPUseCuDNN(true);
  context.setSDPUseFlash(true);
  context.setSDPUseMemEfficient(true);
  context.setSDPUseMath(true);
  EXPECT_GE(computed, 12);
}

TEST(RouteNames, AreReadBack) {
  for (const Route route : nn::routes()) {
    EXPECT_EQ(nn::route_from_name(route_name(route)), route);
  }
  EXPECT_EQ(nn::route_from_name("two_calls_padded"), Route::kTwoCallsPadded);
  EXPECT_THROW(nn::route_from_name("three calls"), Error);
}

}  // namespace
}  // namespace diffattn::testing::routes_test
