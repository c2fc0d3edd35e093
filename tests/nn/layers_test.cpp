// SPDX-License-Identifier: Apache-2.0
//
// Compares the fused operators around attention with torch's operators in float64: values and
// gradients, odd sizes, strided heads, different numbers of threads, CPU and GPU.

#include <functional>

#include "diffattn/ops_layers.h"
#include "ops/layers/gated.h"
#include "tests/nn/layer_laws.h"

namespace diffattn::testing::layers_test {
namespace {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;
using Tensors = std::vector<Tensor>;

struct Values {
  Tensor out;
  Tensors gradients;
};

/// Runs `function` on converted inputs. The first `wanted` of them get gradients.
Values run(const Function& function, const Tensors& inputs, size_t wanted,
           const torch::TensorOptions& options) {
  Tensors converted;
  for (size_t i = 0; i < inputs.size(); ++i) {
    converted.push_back(inputs[i].to(options).detach().requires_grad_(i < wanted));
  }
  const Tensor out = function(converted);
  torch::manual_seed(99);
  const Tensor dout = torch::randn(out.sizes(), torch::kFloat64).to(options);
  const Tensors leaves(converted.begin(), converted.begin() + static_cast<int64_t>(wanted));
  return {out, torch::autograd::grad({out}, leaves, {dout})};
}

void expect_like_float64(const Function& function, const Tensors& inputs, size_t wanted,
                         const torch::TensorOptions& options, double tolerance,
                         const std::string& what) {
  const Values expected = run(function, inputs, wanted, torch::kFloat64);
  const Values actual = run(function, inputs, wanted, options);
  const auto compare = [&](const Tensor& got, const Tensor& want, const std::string& name) {
    const Tensor error =
        (got.to(torch::kCPU, torch::kFloat64) - want).abs() / want.abs().clamp_min(1.0);
    EXPECT_LE(error.max().item<double>(), tolerance) << what << ": " << name;
  };
  compare(actual.out, expected.out, "out");
  for (size_t i = 0; i < wanted; ++i) {
    compare(actual.gradients[i], expected.gradients[i], "gradient " + std::to_string(i));
  }
}

/// Returns the types and devices with fused operators, and their tolerances.
std::vector<std::pair<torch::TensorOptions, double>> fused_types() {
  std::vector<std::pair<torch::TensorOptions, double>> list{{torch::kFloat32, 3e-6}};
  if (torch::cuda::is_available()) {
    const auto gpu = torch::TensorOptions().device(torch::kCUDA);
    list.emplace_back(gpu.dtype(torch::kFloat32), 3e-6);
    list.emplace_back(gpu.dtype(torch::kBFloat16), 3e-2);
  }
  return list;
}

TEST(FusedLayers, RmsNorm) {
  torch::manual_seed(1);
  for (const auto& [options, tolerance] : fused_types()) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{3, 70, 33}, {129, 384}, {1, 1}, {2, 16}}) {
      const Tensor x = torch::randn(shape, torch::kFloat64);
      const Tensor w = torch::randn({shape.back()}, torch::kFloat64);
      const auto norm = [](const Tensors& t) { return rms_norm(t[0], t[1], 1e-5); };
      const auto plain = [](const Tensors& t) { return rms_norm(t[0], Tensor(), 1e-5); };
      // dweight is a sum over all rows and needs a larger tolerance.
      expect_like_float64(norm, {x, w}, 2, options, 10 * tolerance, "weighted");
      expect_like_float64(plain, {x}, 1, options, tolerance, "plain");
    }
  }
}

TEST(FusedLayers, Swiglu) {
  torch::manual_seed(2);
  const auto gated = [](const Tensors& t) { return swiglu(t[0], t[1]); };
  for (const auto& [options, tolerance] : fused_types()) {
    for (const int64_t count : {1, 17, 1000, 70000}) {
      const Tensor gate = 4.0 * torch::randn({count}, torch::kFloat64);
      expect_like_float64(gated, {gate, torch::randn({count}, torch::kFloat64)}, 2, options,
                          tolerance, std::to_string(count));
    }
    const Tensor far = torch::tensor({-500.0, -88.5, -20.0, 0.0, 20.0, 88.5, 500.0, -1e-30});
    expect_like_float64(gated, {far, torch::ones({8})}, 2, options, tolerance, "far");
  }
}

TEST(FusedLayers, GatedProducts) {
  torch::manual_seed(6);
  const auto gated = [](const Tensors& t) { return gated_products(t[0], t[1], t[2]); };
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{3, 70}, {1, 9}, {100}}) {
    auto shape = rows;
    shape.push_back(20);
    const Tensor x = torch::randn(shape, torch::kFloat64);
    const Tensor gate = 0.2 * torch::randn({33, 20}, torch::kFloat64);
    const Tensor up = 0.2 * torch::randn({33, 20}, torch::kFloat64);
    expect_like_float64(gated, {x, gate, up}, 3, torch::kFloat32, 2e-5, "all");
    expect_like_float64(gated, {x, gate, up}, 1, torch::kFloat32, 1e-5, "x");
  }
}

TEST(FusedLayers, Rotate) {
  torch::manual_seed(3);
  for (const auto& [options, tolerance] : fused_types()) {
    for (const bool interleaved : {false, true}) {
      for (const int64_t width : {16, 6}) {
        const RotateOptions rotation{.width = width, .interleaved = interleaved};
        const Tensor heads = torch::randn({2, 5, 3, 16}, torch::kFloat64);
        const auto table = [&](const std::vector<int64_t>& shape) {
          return torch::randn(shape, torch::kFloat64);
        };
        const auto whole = [&](const Tensors& t) {
          const auto wide =
              t[0].scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
          return rotate(t[0], t[1].detach().to(wide), t[2].detach().to(wide), rotation);
        };
        // A strided part of a wider projection, and packed heads.
        const auto part = [&](const Tensors& t) {
          return whole({t[0].slice(2, 1, 3), t[1], t[2]});
        };
        const auto packed = [&](const Tensors& t) {
          return whole({t[0].flatten(0, 1), t[1], t[2]});
        };
        const Tensor per_position = table({5, width / 2}), per_row = table({2, 5, width / 2});
        const Tensor per_token = table({10, width / 2});
        expect_like_float64(whole, {heads, per_position, per_position.cos()}, 1, options, tolerance,
                            "N");
        expect_like_float64(whole, {heads, per_row, per_row.cos()}, 1, options, tolerance, "B, N");
        expect_like_float64(part, {heads, per_position, per_position.cos()}, 1, options, tolerance,
                            "strided");
        expect_like_float64(packed, {heads, per_token, per_token.cos()}, 1, options, tolerance,
                            "packed");
      }
    }
  }
}

TEST(FusedLayers, LinearWithGradientsEqualsTorchs) {
  torch::manual_seed(5);
  // Some are large enough for oneDNN (ops/layers/float_product.cpp).
  const Tensor w = torch::randn({130, 300}), bias = torch::randn({130});
  const Tensor tall = torch::randn({300, 2, 400});
  for (const Tensor& x : {torch::randn({2, 3, 300}), torch::randn({4, 100, 300}),
                          tall.transpose(0, 2), torch::randn({2000, 300})}) {
    const Tensor dy = torch::randn(x.numel() / 300 * 130);
    for (const bool with_bias : {true, false}) {
      const auto results = [&](bool ours, torch::ScalarType type) {
        const auto leaf = [&](const Tensor& t) { return t.detach().to(type).requires_grad_(); };
        const Tensor xs = leaf(x), ws = leaf(w), b = leaf(bias);
        const Tensor used = with_bias ? b : Tensor();
        const Tensor y = ours ? diffattn::linear(xs, ws, used) : torch::linear(xs, ws, used);
        y.backward(dy.view(y.sizes()).to(type));
        std::vector<Tensor> all{y, xs.grad(), ws.grad()};
        if (with_bias) all.push_back(b.grad());
        return all;
      };
      const auto got = results(true, torch::kFloat32), plain = results(false, torch::kFloat32);
      const auto want = results(false, torch::kFloat64);
      for (size_t i = 0; i < want.size(); ++i) {
        const auto error = [&](const Tensor& t) {
          return ((t.to(torch::kFloat64) - want[i]).norm() / want[i].norm()).item<double>();
        };
        EXPECT_LE(error(got[i]), 1.5 * error(plain[i]) + 1e-7) << i;
      }
    }
  }
}

TEST(FusedLayers, LinearOfAFewRows) {
  torch::manual_seed(5);
  const torch::NoGradGuard no_grad;
  for (const auto& [type, tolerance] :
       {std::pair(torch::kFloat32, 2e-6), {torch::kBFloat16, 4e-3}}) {
    for (const int64_t rows : {1, 2, 4, 5}) {  // torch computes 5
      const Tensor x = torch::randn({rows, 1, 70}).to(type), w = torch::randn({90, 70}).to(type);
      const Tensor bias = torch::randn({90}).to(type);
      const auto wide = [](const Tensor& t) { return t.to(torch::kFloat64); };
      const Tensor got = diffattn::linear(x, w, bias), bare = diffattn::linear(x, w);
      EXPECT_EQ(got.scalar_type(), type);
      const Tensor want = torch::linear(wide(x), wide(w), wide(bias));
      expect_close(wide(got), want, "with bias", tolerance);
      expect_close(wide(bare), want - wide(bias), "bare", tolerance);
    }
  }
  const Tensor weight = torch::ones({2, 4});
  EXPECT_THROW(diffattn::linear(torch::ones({1, 3}), weight), diffattn::Error);
  EXPECT_THROW(diffattn::linear(torch::ones({1, 4}), weight[0]), diffattn::Error);
  EXPECT_THROW(diffattn::linear(torch::ones({1, 4}), weight, torch::ones({4})), diffattn::Error);
}

TEST(FusedLayers, ThreadsChangeNothing) {
  torch::manual_seed(4);
  const Tensor x = torch::randn({600, 65}).requires_grad_(true), w = torch::randn({65});
  const Tensor table = torch::randn({600, 6});  // every loop has several blocks
  const auto bits = [&](int threads) {
    torch::set_num_threads(threads);
    const Tensor weight = w.clone().requires_grad_(true);
    const Tensor rotated = rotate(x.view({600, 5, 13}), table, table, {.width = 12});
    const Tensor y = swiglu(rms_norm(x, weight, 1e-5), rotated.view({600, 65}));
    const auto grads = torch::autograd::grad({y.sum()}, {x, weight});
    return Tensors{y.detach(), grads[0], grads[1]};
  };
  const int before = torch::get_num_threads();
  const Tensors one = bits(1), three = bits(3);
  torch::set_num_threads(before);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(torch::equal(one[i], three[i])) << i;
}

TEST(FusedLayers, RefuseSecondDerivatives) {
  const Tensor x = torch::randn({4, 8}).requires_grad_(true);
  const Tensor y = rms_norm(x, Tensor(), 1e-5).square().sum();
  EXPECT_THROW(torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true), diffattn::Error);
}

TEST(FusedLayers, RefuseShapesThatDoNotFit) {
  const Tensor x = torch::randn({2, 3, 4, 8});
  EXPECT_THROW(rms_norm(x, torch::ones({7}), 1e-5), diffattn::Error);
  const Tensor table = torch::ones({3, 4});
  EXPECT_NO_THROW(rotate(x, table, table, {.width = 8}));
  EXPECT_NO_THROW(rotate(x, table.expand({2, 3, 4}), table.expand({2, 3, 4}), {.width = 8}));
  const Tensor short_table = torch::ones({2, 4});
  EXPECT_THROW(rotate(x, short_table, short_table, {.width = 8}), diffattn::Error);
  EXPECT_THROW(rotate(x, table, table, {.width = 10}), diffattn::Error);
  EXPECT_THROW(rotate(x, torch::ones({3, 0}), torch::ones({3, 0}), {}), diffattn::Error);
  EXPECT_THROW(rotate(x, table, torch::ones({3, 3}), {.width = 8}), diffattn::Error);
  EXPECT_THROW(swiglu(x, torch::ones({2, 3, 4, 7})), diffattn::Error);
  try {
    rms_norm(x, torch::ones({7}), 1e-5);
  } catch (const diffattn::Error& error) {
    EXPECT_STREQ(error.what(),
                 "diffattn: argument 'rms_norm.weight': expected [8] on cpu, got [7] on cpu");
  }
}

}  // namespace
}  // namespace diffattn::testing::layers_test
