// SPDX-License-Identifier: Apache-2.0
//
// The operators with features of torch: autocast, inference mode, meta tensors, partial gradients,
// strided views, empty sizes, and the error for double backward.

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "diffattn/kernels/error.h"
#include "diffattn/ops.h"
#include "tests/ops/backends.h"

namespace diffattn::testing::torch_test {
namespace {

using torch::Tensor;

struct Inputs {
  Tensor q1, q2, k1, k2, v, lambda;

  explicit Inputs(torch::TensorOptions options = torch::kFloat32, bool gradients = false) {
    torch::manual_seed(7);
    const auto make = [&](std::vector<int64_t> sizes) {
      return torch::randn(sizes).to(options).requires_grad_(gradients);
    };
    q1 = make({2, 6, 4, 8}), q2 = make({2, 6, 4, 8});
    k1 = make({2, 6, 2, 8}), k2 = make({2, 6, 2, 8}), v = make({2, 6, 2, 16});
    lambda = torch::full({}, 0.4).to(options.device()).requires_grad_(gradients);
  }
  Tensor run(const AttentionOptions& options = {}) const {
    return attention(q1, q2, k1, k2, v, lambda, options);
  }
};

class TorchTest : public ::testing::TestWithParam<CpuBackend> {
 protected:
  void SetUp() override { limit_backend(GetParam().name); }
  void TearDown() override { limit_backend(""); }
};

TEST_P(TorchTest, AutocastCastsActivationsOnly) {
  const Inputs inputs;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
  const Tensor out = inputs.run();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(out.scalar_type(), torch::kBFloat16);
  const auto rounded = [](const Tensor& t) { return t.to(torch::kBFloat16); };
  const Tensor want = attention(rounded(inputs.q1), rounded(inputs.q2), rounded(inputs.k1),
                                rounded(inputs.k2), rounded(inputs.v), inputs.lambda);
  EXPECT_TRUE(out.equal(want));
}

TEST_P(TorchTest, InferenceModeAndNoGrad) {
  const Inputs inputs(torch::kFloat32, /*gradients=*/true);
  const Tensor want = inputs.run().detach();
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(inputs.run().equal(want));
  }
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(inputs.run().requires_grad());
}

TEST_P(TorchTest, OnlyWantedGradients) {
  Inputs inputs;
  inputs.k2.requires_grad_(true);
  inputs.run().sum().backward();
  EXPECT_TRUE(inputs.k2.grad().defined());
  EXPECT_FALSE(inputs.q1.grad().defined());
}

TEST_P(TorchTest, SharedKeysSumTheirGradients) {
  const Inputs separate(torch::kFloat64, true);
  const Tensor k = separate.k1.detach().clone().requires_grad_(true);
  const Tensor ka = k.detach().clone().requires_grad_(true);
  const Tensor kb = k.detach().clone().requires_grad_(true);
  attention(separate.q1, separate.q2, k, k, separate.v, separate.lambda).sin().sum().backward();
  attention(separate.q1, separate.q2, ka, kb, separate.v, separate.lambda).sin().sum().backward();
  EXPECT_TRUE(torch::allclose(k.grad(), ka.grad() + kb.grad(), 1e-12, 1e-12));
}

TEST_P(TorchTest, DoubleBackwardIsRefusedWithAReason) {
  const Inputs inputs(torch::kFloat64, true);
  const Tensor first = torch::autograd::grad({inputs.run().sum()}, {inputs.q1}, {}, true, true)[0];
  try {
    first.sum().backward();
    ADD_FAILURE() << "no error";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("double backward"), std::string::npos) << error.what();
  }
}

TEST_P(TorchTest, LowPrecisionLambdaAndNormWeightKeepTheirTypes) {
  Inputs inputs(torch::kBFloat16);
  inputs.lambda = torch::full({4}, 0.3, torch::kBFloat16).requires_grad_(true);
  const Tensor weight = torch::ones({16}, torch::kBFloat16).requires_grad_(true);
  inputs.run(AttentionOptions().norm_eps(1e-5).norm_weight(weight)).sum().backward();
  EXPECT_EQ(inputs.lambda.grad().scalar_type(), torch::kBFloat16);
  EXPECT_EQ(weight.grad().scalar_type(), torch::kBFloat16);
}

TEST_P(TorchTest, StridedViewsEqualContiguousTensors) {
  torch::manual_seed(3);
  const Tensor qkv = torch::randn({2, 9, 3 * 64});  // one projection, of which q, k and v are views
  const auto piece = [&](int64_t i) { return qkv.narrow(2, 64 * i, 64).unflatten(2, {2, 2, 16}); };
  const Tensor q = piece(0), k = piece(1);
  const Tensor wide = qkv.narrow(2, 128, 64).unflatten(2, {2, 32});
  const Tensor lambda = torch::tensor(0.5f);
  const Tensor got = attention(q.select(3, 0), q.select(3, 1), k.select(3, 0), k.select(3, 1), wide,
                               lambda, AttentionOptions().causal(true));
  const auto copy = [](const Tensor& t) { return t.contiguous(); };
  const Tensor want =
      attention(copy(q.select(3, 0)), copy(q.select(3, 1)), copy(k.select(3, 0)),
                copy(k.select(3, 1)), copy(wide), lambda, AttentionOptions().causal(true));
  EXPECT_TRUE(got.equal(want));
}

TEST_P(TorchTest, EmptySizes) {
  const auto run = [](int64_t batch, int64_t rows, int64_t columns, int64_t heads) {
    const auto q = torch::randn({batch, rows, heads, 8}).requires_grad_(true);
    const auto k = torch::randn({batch, columns, heads, 8}).requires_grad_(true);
    const auto v = torch::randn({batch, columns, heads, 4}).requires_grad_(true);
    const auto lambda = torch::tensor(0.5f).requires_grad_(true);
    const auto out = attention(q, q, k, k, v, lambda, AttentionOptions().norm_eps(0.0));
    EXPECT_EQ(out.sizes(), torch::IntArrayRef({batch, rows, heads, 4}));
    EXPECT_TRUE(out.equal(torch::zeros_like(out)));
    out.sum().backward();
    EXPECT_EQ(lambda.grad().item<float>(), 0.0f);
    EXPECT_TRUE(k.grad().equal(torch::zeros_like(k)));
    attention_stats(q, q, k, k, lambda).sum().backward();
    attention_map(q, q, k, k, lambda);
  };
  run(0, 3, 5, 2);
  run(2, 0, 5, 2);
  run(2, 3, 0, 2);
  run(2, 3, 0, 0);
}

TEST_P(TorchTest, ExpandedAndUnusedGradients) {
  const Inputs inputs(torch::kFloat32, true);
  const Tensor out = inputs.run();
  out.sum().backward();  // the gradient of a sum has strides 0
  const Tensor got = inputs.q1.grad().clone();
  inputs.q1.mutable_grad().zero_();
  inputs.run().backward(torch::ones_like(out));
  EXPECT_TRUE(got.equal(inputs.q1.grad()));
}

INSTANTIATE_TEST_SUITE_P(Backends, TorchTest, ::testing::ValuesIn(available_cpu_backends()),
                         backend_name);

TEST(Meta, ShapesWithoutData) {
  const Inputs inputs(torch::TensorOptions().device(torch::kMeta).dtype(torch::kBFloat16));
  const Tensor out = inputs.run(AttentionOptions().causal(true));
  EXPECT_TRUE(out.is_meta());
  EXPECT_EQ(out.sizes(), torch::IntArrayRef({2, 6, 4, 16}));
  EXPECT_EQ(out.scalar_type(), torch::kBFloat16);
  const Tensor stats = attention_stats(inputs.q1, inputs.q2, inputs.k1, inputs.k2, inputs.lambda);
  EXPECT_EQ(stats.sizes(), torch::IntArrayRef({2, 6, 4, kStatCount}));
  EXPECT_EQ(stats.scalar_type(), torch::kFloat32);
  Inputs wrong = inputs;
  wrong.k2 = wrong.k2.slice(1, 0, 2);
  EXPECT_THROW(wrong.run(), Error);
}

}  // namespace
}  // namespace diffattn::testing::torch_test
