// SPDX-License-Identifier: Apache-2.0
//
// Compares the operators on CUDA tensors, in the types of the fused kernels, with the reference in
// float64 on the same values. Without a GPU these tests print "skipped: no GPU".

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <functional>

#include "diffattn/ops.h"
#include "tests/ops/naive.h"
#include "tests/ops/random_case.h"

namespace diffattn::testing::cuda_test {
namespace {

using torch::Tensor;

constexpr int kCases = 150;
constexpr uint64_t kFirstSeed = 20261;
const torch::Device kCuda(torch::kCUDA, 0);

class CudaOps : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no GPU";
  }
  void TearDown() override { limit_backend(""); }
};

/// Tolerance relative to the largest magnitude: a few roundings of probabilities and outputs. If
/// terms cancel (dlambda under a norm), the naive code has a larger error, and so may kernels that
/// round probabilities. We add kNaiveShare times the naive error.
constexpr double kNaiveShare = 1.25;
double tolerance(torch::ScalarType dtype) {
  return dtype == torch::kFloat32 ? 2e-5 : dtype == torch::kFloat16 ? 8e-3 : 6e-2;
}

AttentionOptions moved(const AttentionOptions& options, torch::Device device) {
  AttentionOptions result = options;
  const auto move = [&](const std::optional<Tensor>& t) {
    return t ? std::optional(t->to(device)) : std::nullopt;
  };
  result.mask(move(options.mask()));
  result.key_starts(move(options.key_starts()));
  result.key_lengths(move(options.key_lengths()));
  result.cu_seqlens_q(move(options.cu_seqlens_q()));
  result.cu_seqlens_k(move(options.cu_seqlens_k()));
  result.norm_weight(move(options.norm_weight()));
  return result;
}

using Compute =
    std::function<Tensor(const std::vector<Tensor>& tensors, const AttentionOptions& options)>;

/// The operation under test. The gradient of one statistic, the entropy, is unbounded.
struct Operation {
  const char* name;
  Compute compute;
  Compute naive = nullptr;
  bool statistics = false;
};

struct Named {
  std::string name;
  Tensor value;
};

/// Returns the result and its gradients at a fixed cotangent, rounded to the type `rounding`. All
/// are float64 on the CPU.
std::vector<Named> evaluate(const RandomCase& c, torch::Device device, torch::ScalarType dtype,
                            torch::ScalarType rounding, const Operation& operation,
                            const Compute& compute) {
  std::vector<Tensor> leaves;
  for (size_t i = 0; i < c.tensors.size(); ++i) {
    const bool activation = i < 5;  // lambda, norm weight and mask stay in float
    const auto type = activation || dtype == torch::kFloat64 ? dtype : torch::kFloat32;
    leaves.push_back(c.tensors[i].detach().to(device, type).requires_grad_(true));
  }
  const Tensor out = compute(leaves, moved(c.options_with(leaves), device));
  std::vector<Named> result{{operation.name, out.detach().to(torch::kCPU, torch::kFloat64)}};
  if (!out.requires_grad()) return result;
  Tensor cotangent = torch::arange(out.numel(), torch::kFloat64).mul(0.37).cos().view(out.sizes());
  if (operation.statistics) cotangent.select(-1, kStatEntropy).zero_();  // log |A| at 0
  const auto gradients =
      torch::autograd::grad({out}, leaves, {cotangent.to(rounding).to(out.options())}, false, false,
                            /*allow_unused=*/true);
  std::vector<std::string> names{"dq1", "dq2", "dk1", "dk2", "dv", "dlambda"};
  if (c.norm_weight_at >= 0) names.push_back("dnorm_weight");
  if (c.mask_at >= 0) names.push_back("dmask");
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    result.push_back({names[i], gradients[i].to(torch::kCPU, torch::kFloat64)});
  }
  return result;
}

void expect_agreement(const Operation& operation) {
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    for (int i = 0; i < kCases; ++i) {
      const RandomCase c = make_random_case(kFirstSeed + static_cast<uint64_t>(i), dtype);
      limit_backend("reference");
      const auto want =
          evaluate(c, torch::kCPU, torch::kFloat64, dtype, operation, operation.compute);
      limit_backend("");
      const auto got = evaluate(c, kCuda, dtype, dtype, operation, operation.compute);
      ASSERT_EQ(got.size(), want.size());
      std::vector<Named> naive;
      if (operation.naive && dtype != torch::kFloat32) {
        naive = evaluate(c, torch::kCPU, dtype, dtype, operation, operation.naive);
      }
      for (size_t j = 0; j < want.size(); ++j) {
        const std::string what = c.text + ": " + operation.name + ", " + want[j].name;
        const Tensor &x = got[j].value, &y = want[j].value;
        ASSERT_EQ(x.sizes(), y.sizes()) << what;
        if (y.numel() == 0) continue;
        const double scale = std::max(1.0, y.abs().max().item<double>());
        const double error = (x - y).abs().max().item<double>();
        const double naive_error =
            naive.empty() ? 0.0 : (naive[j].value - y).abs().max().item<double>();
        ASSERT_LE(error, tolerance(dtype) * scale + kNaiveShare * naive_error)
            << dtype << ", " << what << "; naive errs by " << naive_error;
      }
    }
  }
}

Tensor attention_of(const std::vector<Tensor>& t, const AttentionOptions& options) {
  return attention(t[0], t[1], t[2], t[3], t[4], t[5], options);
}

TEST_F(CudaOps, AttentionAndGradients) {
  expect_agreement({"attention", attention_of, naive_attention});
}

/// The naive code equals the reference in float64. Needs no GPU.
TEST(CudaYardstick, IsTheReferenceInDouble) {
  limit_backend("reference");
  for (int i = 0; i < kCases; ++i) {
    const RandomCase c = make_random_case(kFirstSeed + static_cast<uint64_t>(i), torch::kFloat64);
    const Operation operation{"attention", attention_of, naive_attention};
    const auto run = [&](const Compute& compute) {
      return evaluate(c, torch::kCPU, torch::kFloat64, torch::kFloat64, operation, compute);
    };
    const auto want = run(operation.compute), got = run(operation.naive);
    ASSERT_EQ(got.size(), want.size()) << c.text;
    for (size_t j = 0; j < want.size(); ++j) {
      ASSERT_TRUE(torch::allclose(got[j].value, want[j].value, 1e-9, 1e-9))
          << c.text << ": " << want[j].name;
    }
  }
  limit_backend("");
}

TEST_F(CudaOps, Decode) {
  expect_agreement({"decode", [](const auto& t, const auto& options) {
                      if (options.cu_seqlens_q()) return torch::zeros({1});
                      return decode(t[0], t[1], t[2], t[3], t[4], t[5], options);
                    }});
}

TEST_F(CudaOps, StatisticsAndGradients) {
  expect_agreement({"stats",
                    [](const auto& t, const auto& options) {
                      return attention_stats(t[0], t[1], t[2], t[3], t[5], options,
                                             /*sparse_threshold=*/0.0);
                    },
                    /*naive=*/nullptr,
                    /*statistics=*/true});
}

TEST_F(CudaOps, Maps) {
  expect_agreement({"map", [](const auto& t, const auto& options) {
                      return attention_map(t[0], t[1], t[2], t[3], t[5], options);
                    }});
}

/// Both maps of 20,000 rows would take 9.6 GB. Statistics, gradients and downsampled maps take
/// megabytes.
TEST_F(CudaOps, MapsAreNeverStored) {
  const auto options = torch::dtype(torch::kBFloat16).device(kCuda);
  const auto make = [&] { return torch::randn({1, 20000, 1, 64}, options).requires_grad_(true); };
  const Tensor q1 = make(), q2 = make(), k1 = make(), k2 = make();
  const Tensor lambda = torch::full({}, 0.5f, options.dtype(torch::kFloat32));
  const Tensor stats = attention_stats(q1, q2, k1, k2, lambda, AttentionOptions().causal(true));
  stats.sum().backward();
  EXPECT_TRUE(torch::isfinite(q1.grad()).all().item<bool>());
  EXPECT_EQ(stats.select(-1, kStatVisible)[0][19999][0].item<float>(), 20000.0f);
  const Tensor map = attention_map(q1, q2, k1, k2, lambda, AttentionOptions().causal(true),
                                   MapOptions().rows(32).cols(32));
  EXPECT_EQ(map.sizes(), torch::IntArrayRef({1, 1, 3, 32, 32}));
  EXPECT_EQ(map[0][0][0][0][31].item<float>(), 0.0f);  // above the diagonal
}

/// The operator runs on the current stream, after the work that was enqueued there.
TEST_F(CudaOps, CurrentStream) {
  const auto options = torch::dtype(torch::kBFloat16).device(kCuda);
  const Tensor q = torch::randn({2, 300, 4, 64}, options),
               v = torch::randn({2, 300, 4, 128}, options);
  const Tensor lambda = torch::full({}, 0.5f, options.dtype(torch::kFloat32));
  const Tensor want = attention(q, q, q, q, v, lambda);
  torch::cuda::synchronize();
  const c10::impl::VirtualGuardImpl guard_impl(c10::kCUDA);
  const c10::StreamGuard guard(guard_impl.getNewStream(kCuda));
  const Tensor slow = torch::randn({4096, 4096}, options);
  Tensor late = torch::zeros_like(q);
  Tensor product = slow;
  for (int i = 0; i < 20; ++i) product = product.matmul(slow) * 0.01;
  late.copy_(q + 0.0 * product.nan_to_num(0, 0, 0).clamp(-1, 1).mean());
  EXPECT_TRUE(attention(late, late, late, late, v, lambda).equal(want));
}

}  // namespace
}  // namespace diffattn::testing::cuda_test
