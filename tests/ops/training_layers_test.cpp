// SPDX-License-Identifier: Apache-2.0
//
// The operators around attention in training. On a GPU they are compared with float64 on the same
// values: their error may not exceed that of code that rounds after every step.

#include <gtest/gtest.h>

#include "diffattn/ops_layers.h"
#include "ops/layers/add_rms_norm.h"
#include "ops/layers/fused_adamw.h"
#include "ops/layers/gated.h"
#include "ops/layers/joined_rows.h"
#include "ops/layers/lambda_vectors.h"
#include "ops/layers/loss.h"
#include "ops/layers/projected_heads.h"

namespace diffattn::testing::training_layers_test {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

double largest(const Tensor& x) { return x.abs().max().item<double>(); }

Tensors detached(const Tensors& tensors, torch::ScalarType type) {
  Tensors result;
  for (const Tensor& t : tensors) result.push_back(t.detach().to(type).requires_grad_(true));
  return result;
}

// --- Projected heads -----------------------------------------------------------------------------

struct HeadsCase {
  Tensor x, cos, sin;
  ProjectionWeights weights;
};

constexpr int64_t kHeads = 4, kDim = 8, kWidth = 24, kTokens = 5;

HeadsCase heads_case(const torch::TensorOptions& options) {
  torch::manual_seed(7);
  const auto random = [&](at::IntArrayRef sizes) {
    return torch::randn(sizes, options).requires_grad_(true);
  };
  const auto table = options.dtype() == torch::kFloat64 ? options : options.dtype(torch::kFloat32);
  const Tensor angles = torch::rand({kTokens, kDim / 2}, table);
  const int64_t rows = kHeads * kDim;
  return {random({2, kTokens, kWidth}),
          angles.cos(),
          angles.sin(),
          {random({rows, kWidth}), random({rows, kWidth}), random({rows, kWidth})}};
}

/// q in halves, k in stripes, v whole.
ProjectionLayout layout_of(const HeadsCase& c, bool joins_value_halves) {
  return {{{0, 2, kDim, kDim},
           {2 * kDim, 2, kDim, kDim},
           {4 * kDim, 2, 2 * kDim, kDim},
           {5 * kDim, 2, 2 * kDim, kDim},
           {8 * kDim, 2, 2 * kDim, 2 * kDim}},
          kDim,
          c.cos,
          c.sin,
          joins_value_halves};
}

Tensors separate_heads(const HeadsCase& c, bool joins_value_halves) {
  const auto heads = [&](const Tensor& weight, int64_t dim) {
    return torch::linear(c.x, weight).unflatten(-1, {-1, dim});
  };
  const Tensor q = rotate(heads(c.weights.q, kDim), c.cos, c.sin, {.width = kDim});
  const Tensor k = rotate(heads(c.weights.k, kDim), c.cos, c.sin, {.width = kDim});
  const Tensor v = heads(c.weights.v, kDim);
  return {q.slice(-2, 0, 2), q.slice(-2, 2), k.slice(-2, 0, 4, 2), k.slice(-2, 1, 4, 2),
          joins_value_halves ? torch::cat({v.slice(-2, 0, 2), v.slice(-2, 2)}, -1)
                             : v.unflatten(-2, {2, 2}).flatten(-2)};
}

/// Returns results and gradients of a sum that weighs every element differently.
Tensors with_gradients(const Tensors& results, const Tensors& inputs) {
  Tensor sum = torch::zeros({}, results[0].options().dtype(torch::kFloat64));
  for (const Tensor& result : results) {
    const Tensor weights = torch::arange(result.numel(), sum.options()).sin().view(result.sizes());
    sum = sum + (result.to(torch::kFloat64) * weights).sum();
  }
  Tensors all = results;
  for (const Tensor& gradient : torch::autograd::grad({sum}, inputs)) all.push_back(gradient);
  return all;
}

void expect_equal_heads(const torch::TensorOptions& options, double tolerance) {
  for (const bool joins : {false, true}) {
    const HeadsCase c = heads_case(options);
    const Tensors inputs{c.x, c.weights.q, c.weights.k, c.weights.v};
    const Tensors expected = with_gradients(separate_heads(c, joins), inputs);
    const Tensors actual =
        with_gradients(projected_heads(c.x, c.weights, layout_of(c, joins)), inputs);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(actual[i].sizes(), expected[i].sizes());
      EXPECT_LT(largest(actual[i] - expected[i]), tolerance * largest(expected[i])) << i;
    }
  }
}

TEST(TorchTrainingLayers, ProjectedHeadsEqualSeparateProjections) {
  expect_equal_heads(torch::kFloat64, 1e-12);
  expect_equal_heads(torch::kFloat32, 1e-5);
}

TEST(TorchTrainingLayers, ProjectedHeadsMayLeaveAResultUnused) {
  const HeadsCase c = heads_case(torch::kFloat64);
  const Tensors heads = projected_heads(c.x, c.weights, layout_of(c, false));
  const auto gradient = torch::autograd::grad({heads[4].sum()}, {c.weights.q, c.weights.v});
  EXPECT_EQ(largest(gradient[0]), 0.0);
  EXPECT_GT(largest(gradient[1]), 0.0);
}

TEST(TorchTrainingLayers, ProjectedHeadsRefuseMissingColumns) {
  const HeadsCase c = heads_case(torch::kFloat64);
  ProjectionLayout layout = layout_of(c, false);
  layout.parts.pop_back();
  EXPECT_THROW(projected_heads(c.x, c.weights, layout), c10::Error);
}

TEST(TorchTrainingLayers, JoinedRowsCopyOnlyWhatIsApart) {
  const Tensor whole = torch::randn({5, 3});
  const Tensor top = whole.slice(0, 0, 2), bottom = whole.slice(0, 2);
  EXPECT_EQ(ops::joined_rows({top, bottom}).const_data_ptr(), whole.const_data_ptr());
  EXPECT_TRUE(torch::equal(ops::joined_rows({top, bottom}), whole));
  EXPECT_TRUE(torch::equal(ops::joined_rows({bottom, top}), torch::cat({bottom, top})));
  EXPECT_TRUE(torch::equal(ops::joined_rows({top, bottom.clone()}), whole));
}

// --- On a GPU ------------------------------------------------------------------------------------

class CudaTrainingLayers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
    torch::manual_seed(11);
  }
};

const auto kGpu = torch::TensorOptions().device(torch::kCUDA);

/// Expects errors of `actual` against `exact` that are at most 1.1 times those of `naive`, plus a
/// part in 10^6 of the largest element.
void expect_no_worse(const Tensors& actual, const Tensors& naive, const Tensors& exact) {
  for (size_t i = 0; i < exact.size(); ++i) {
    ASSERT_EQ(actual[i].sizes(), exact[i].sizes());
    const double error = largest(actual[i].to(torch::kFloat64) - exact[i]);
    const double allowed = largest(naive[i].to(torch::kFloat64) - exact[i]);
    EXPECT_LE(error, 1.1 * allowed + 2e-6 * largest(exact[i])) << i;
  }
}

Tensors norm_by_steps(const Tensors& in) {
  const Tensor h = in[0] + in[1];
  const Tensor r = torch::rsqrt(h.square().mean(-1, true) + 1e-5);
  return {h, h * r * in[2].to(h.scalar_type())};
}

TEST_F(CudaTrainingLayers, SumAndNorm) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    for (const int64_t width : {8, 40, 1024, 8192}) {
      const Tensors given{torch::randn({3, 37, width}, kGpu), torch::randn({3, 37, width}, kGpu),
                          1.0 + 0.1 * torch::randn({width}, kGpu)};
      Tensors in = detached(given, type);
      const Tensors exact_in = detached(in, torch::kFloat64), naive_in = detached(in, type);
      in[2] = in[2].detach().to(torch::kFloat32).requires_grad_(true);
      ASSERT_TRUE(takes_add_rms_norm(in[0], in[1], in[2], type));
      const NormedSum result = add_rms_norm(in[0], in[1], in[2], 1e-5, type);
      expect_no_worse(with_gradients({result.sum, result.norm}, in),
                      with_gradients(norm_by_steps(naive_in), naive_in),
                      with_gradients(norm_by_steps(exact_in), exact_in));
    }
  }
}

TEST_F(CudaTrainingLayers, NormWithoutABranchAndFloat32Stream) {
  const Tensor x = torch::randn({65, 1024}, kGpu), w = torch::rand({1024}, kGpu);
  const Tensor branch = torch::randn_like(x).to(torch::kBFloat16);
  const auto norm = [&](const Tensor& h) {
    return h * torch::rsqrt(h.square().mean(-1, true) + 1e-5) * w;
  };
  const NormedSum alone = add_rms_norm(x, {}, w, 1e-5, torch::kFloat32);
  EXPECT_TRUE(alone.sum.is_same(x));
  EXPECT_LT(largest(alone.norm - norm(x)), 1e-5);
  const NormedSum mixed = add_rms_norm(x, branch, w, 1e-5, torch::kBFloat16);
  EXPECT_TRUE(torch::equal(mixed.sum, x + branch));
  EXPECT_LT(largest(mixed.norm.to(torch::kFloat32) - norm(x + branch)), 0.02);
}

TEST_F(CudaTrainingLayers, GatedProducts) {
  const Tensors given{torch::randn({2, 33, 64}, kGpu), 0.1 * torch::randn({72, 64}, kGpu),
                      0.1 * torch::randn({72, 64}, kGpu)};
  const auto by_steps = [](const Tensors& in) {
    return Tensors{torch::silu(torch::linear(in[0], in[1])) * torch::linear(in[0], in[2])};
  };
  const Tensors in = detached(given, torch::kBFloat16), naive = detached(in, torch::kBFloat16),
                exact = detached(in, torch::kFloat64);
  expect_no_worse(with_gradients({gated_products(in[0], in[1], in[2])}, in),
                  with_gradients(by_steps(naive), naive), with_gradients(by_steps(exact), exact));
}

TEST_F(CudaTrainingLayers, ProjectedHeads) {
  expect_equal_heads(kGpu.dtype(torch::kFloat32), 1e-2);  // products may round to TF32
  expect_equal_heads(kGpu.dtype(torch::kBFloat16), 2e-2);
}

TEST_F(CudaTrainingLayers, CrossEntropy) {
  const int64_t rows = 37, classes = 1000;
  Tensor labels = torch::randint(classes, {rows}, kGpu.dtype(torch::kLong));
  labels[3] = -100;
  const CrossEntropyRows options{.label_smoothing = 0.1, .z_loss = 0.01};
  for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    const Tensor logits = (3.0 * torch::randn({rows, classes}, kGpu)).to(type);
    const Tensor z = logits.to(torch::kFloat64).requires_grad_(true);
    const Tensor lse = torch::logsumexp(z, 1), counts = labels.ne(-100);
    const Tensor target = z.gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1);
    const Tensor loss = torch::where(
        counts, lse - 0.9 * target - 0.1 * z.mean(1) + 0.01 * lse.square(), torch::zeros_like(lse));
    const Tensor gradient = torch::autograd::grad({(0.5 * loss).sum()}, {z})[0];
    Tensor memory = logits.clone();
    const Tensor factor = torch::full({}, 0.5, kGpu);
    const Tensor actual = cross_entropy_rows_(memory, labels, factor, options);
    EXPECT_LT(largest(actual - loss), 1e-4);
    const double rounding = type == torch::kFloat32 ? 1e-5 : type == torch::kFloat16 ? 1e-3 : 5e-3;
    EXPECT_LT(largest(memory - gradient), rounding);
    Tensor unchanged = logits.clone();
    EXPECT_TRUE(torch::equal(cross_entropy_rows_(unchanged, labels, {}, options), actual));
    EXPECT_TRUE(torch::equal(unchanged, logits));
  }
}

TEST_F(CudaTrainingLayers, CrossEntropyOfAnImpossibleLabelIsNaN) {
  Tensor logits = torch::zeros({2, 8}, kGpu);
  const Tensor labels = torch::tensor({8, 1}, torch::kLong).to(torch::kCUDA);
  const Tensor loss = cross_entropy_rows_(logits, labels, {}, {});
  EXPECT_TRUE(torch::isnan(loss[0]).item<bool>());
  EXPECT_TRUE(torch::isfinite(loss[1]).item<bool>());
}

TEST_F(CudaTrainingLayers, Lambda) {
  const Tensors in = detached({0.1 * torch::randn({4, 64}, kGpu)}, torch::kFloat32);
  const Tensors exact = detached(in, torch::kFloat64);
  const auto by_steps = [](const Tensor& v) {
    return Tensors{((v[0] * v[1]).sum().exp() - (v[2] * v[3]).sum().exp() + 0.8).view({1})};
  };
  const Tensor& v = in[0];
  const LambdaVectors vectors{v[0], v[1], v[2], v[3]};
  ASSERT_TRUE(takes_lambda_vectors(vectors));
  // The weight of element 0 in the sum is sin 0, so the element comes twice.
  const Tensor lambda = lambda_of_vectors(vectors, 0.8).view({1});
  const Tensors twice = with_gradients({torch::cat({lambda, lambda})}, in);
  const Tensors exact_twice =
      with_gradients({torch::cat({by_steps(exact[0])[0], by_steps(exact[0])[0]})}, exact);
  EXPECT_LT(largest(lambda - by_steps(exact[0])[0]), 1e-6);
  EXPECT_LT(largest(twice[1] - exact_twice[1]), 1e-6);
}

/// Three parameters: one with a copy and a bfloat16 gradient, an odd one, one without a gradient.
std::vector<AdamWParameter> optimized() {
  std::vector<AdamWParameter> result;
  for (const int64_t size : {100000, 37, 64}) {
    const Tensor p = torch::randn({size}, kGpu);
    result.push_back({.parameter = p,
                      .exp_avg = torch::zeros_like(p),
                      .exp_avg_sq = torch::zeros_like(p),
                      .step = torch::zeros({}, kGpu),
                      .weight_decay = size == 37 ? 0.0 : 0.1});
  }
  result[0].copy = torch::empty({100000}, kGpu.dtype(torch::kBFloat16));
  return result;
}

TEST_F(CudaTrainingLayers, AdamWEqualsTorch) {
  const auto parameters = optimized();
  FusedAdamW optimizer(parameters);
  Tensors reference{parameters[0].parameter.clone(), parameters[1].parameter.clone()};
  Tensors m{torch::zeros_like(reference[0]), torch::zeros_like(reference[1])};
  Tensors v{torch::zeros_like(reference[0]), torch::zeros_like(reference[1])};
  Tensors steps{torch::zeros({}, kGpu), torch::zeros({}, kGpu)};
  const Tensor untouched = parameters[2].parameter.clone();
  const Tensor loss = torch::ones({}, kGpu.dtype(torch::kFloat64));
  for (int i = 0; i < 5; ++i) {
    const Tensors grads{torch::randn({100000}, kGpu).to(torch::kBFloat16),
                        torch::randn({37}, kGpu)};
    Tensors wide{grads[0].to(torch::kFloat32), grads[1].clone()};
    const Tensor norm = torch::cat({wide[0], wide[1]}).norm();
    const double max_norm = i % 2 == 0 ? 1.0 : 0.0;
    const Tensor actual = optimizer.step({grads[0], grads[1], Tensor()}, loss,
                                         {.learning_rate = 1e-2, .max_norm = max_norm});
    EXPECT_NEAR(actual.item<double>(), norm.item<double>(), 1e-5 * norm.item<double>());
    if (max_norm > 0.0) at::_foreach_mul_(wide, max_norm / (norm.item<double>() + 1e-6));
    at::_foreach_add_(steps, 1);
    for (size_t k = 0; k < 2; ++k) {
      Tensors one_p{reference[k]}, one_g{wide[k]}, one_m{m[k]}, one_v{v[k]}, one_s{steps[k]};
      at::_fused_adamw_(one_p, one_g, one_m, one_v, {}, one_s, 1e-2, 0.9, 0.95,
                        parameters[k].weight_decay, 1e-8, false, false);
    }
  }
  for (size_t k = 0; k < 2; ++k) {
    EXPECT_LT(largest(parameters[k].parameter - reference[k]), 1e-5) << k;
    EXPECT_LT(largest(parameters[k].exp_avg_sq - v[k]), 1e-5) << k;
    EXPECT_EQ(parameters[k].step.item<double>(), 5.0);
  }
  EXPECT_TRUE(torch::equal(parameters[0].copy, parameters[0].parameter.to(torch::kBFloat16)));
  EXPECT_TRUE(torch::equal(parameters[2].parameter, untouched));
  EXPECT_EQ(parameters[2].step.item<double>(), 0.0);
}

TEST_F(CudaTrainingLayers, AdamWSkipsWhatIsNotFinite) {
  const auto parameters = optimized();
  FusedAdamW optimizer(parameters);
  const Tensor before = parameters[0].parameter.clone();
  const Tensor good = torch::ones({100000}, kGpu);
  Tensor bad = good.clone();
  bad[99999] = std::numeric_limits<float>::infinity();
  const auto loss = [](double value) {
    return torch::full({}, value, kGpu.dtype(torch::kFloat64));
  };
  EXPECT_FALSE(std::isfinite(
      optimizer.step({bad, Tensor(), Tensor()}, loss(1.0), {.learning_rate = 1.0}).item<double>()));
  optimizer.step({good, Tensor(), Tensor()}, loss(std::nan("")), {.learning_rate = 1.0});
  EXPECT_TRUE(torch::equal(parameters[0].parameter, before));
  EXPECT_EQ(parameters[0].step.item<double>(), 0.0);
  EXPECT_EQ(largest(parameters[0].exp_avg), 0.0);
  optimizer.step({good, Tensor(), Tensor()}, loss(1.0), {.learning_rate = 1.0});
  EXPECT_EQ(parameters[0].step.item<double>(), 1.0);
}

}  // namespace
}  // namespace diffattn::testing::training_layers_test
