// SPDX-License-Identifier: Apache-2.0
//
// Compares every backend, through the operators, with the reference in float64: outputs, gradients,
// decoding, statistics and maps of random calls. The composed backend gets its gradients from
// autograd, so this also checks the hand-written backward of the reference.

#include <gtest/gtest.h>

#include <cstdlib>

#include "diffattn/ops.h"
#include "tests/ops/backends.h"
#include "tests/ops/random_case.h"

namespace diffattn::testing::agreement_test {
namespace {

using torch::Tensor;

// Relative to the largest magnitude, in float64.
constexpr double kTolerance = 1e-12;
// The gradient of the entropy contains log |A|. Entries of A that cancel to a rounding error have a
// logarithm of that error.
constexpr double kStatsTolerance = 1e-8;
constexpr int kCases = 250;

uint64_t first_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("DIFFATTN_TEST_SEED");
    const uint64_t value =
        given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}() % 1000000007u;
    std::printf("first seed %llu (DIFFATTN_TEST_SEED repeats it)\n",
                static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

void expect_close(const Tensor& got, const Tensor& want, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  if (want.numel() == 0) return;
  ASSERT_TRUE(torch::isfinite(got).equal(torch::isfinite(want)))
      << what << ": other elements are finite";
  const Tensor a = torch::nan_to_num(got, 0, 0, 0), b = torch::nan_to_num(want, 0, 0, 0);
  const double scale = std::max(1.0, b.abs().max().item<double>());
  const Tensor error = (a - b).abs().flatten();
  const int64_t at = error.argmax().item<int64_t>();
  EXPECT_LE(error[at].item<double>(), tolerance * scale)
      << what << ": element " << at << " is " << got.flatten()[at].item<double>() << ", expected "
      << want.flatten()[at].item<double>();
}

class AgreementTest : public ::testing::TestWithParam<CpuBackend> {
 protected:
  void TearDown() override { limit_backend(""); }

  /// Compares `compute` on the reference and on the backend under test.
  template <class Compute>
  void expect_agreement(const RandomCase& c, const char* name, Compute compute,
                        double tolerance = kTolerance) {
    limit_backend("reference");
    const std::vector<Tensor> want = compute();
    limit_backend(GetParam().name);
    const std::vector<Tensor> got = compute();
    for (size_t i = 0; i < want.size(); ++i) {
      expect_close(got[i], want[i], tolerance, c.text + ": " + name + " " + std::to_string(i));
    }
  }
};

std::vector<Tensor> fresh_leaves(const RandomCase& c) {
  std::vector<Tensor> leaves;
  for (const Tensor& tensor : c.tensors) leaves.push_back(tensor.detach().requires_grad_(true));
  return leaves;
}

/// Returns `out` and those of its gradients that exist, at a fixed cotangent.
std::vector<Tensor> with_gradients(const Tensor& out, const std::vector<Tensor>& leaves) {
  std::vector<Tensor> result{out.detach()};
  if (!out.requires_grad()) return result;
  const Tensor cotangent =
      torch::arange(out.numel(), out.options()).mul(0.37).cos().view(out.sizes());
  for (const Tensor& gradient :
       torch::autograd::grad({out}, leaves, {cotangent}, false, false, /*allow_unused=*/true)) {
    if (gradient.defined()) result.push_back(gradient);
  }
  return result;
}

TEST_P(AgreementTest, AttentionAndGradients) {
  for (int i = 0; i < kCases; ++i) {
    const RandomCase c = make_random_case(first_seed() + i, torch::kFloat64);
    expect_agreement(c, "attention", [&] {
      const auto t = fresh_leaves(c);
      return with_gradients(attention(t[0], t[1], t[2], t[3], t[4], t[5], c.options_with(t)), t);
    });
  }
}

TEST_P(AgreementTest, StatisticsAndGradients) {
  for (int i = 0; i < kCases; ++i) {
    RandomCase c = make_random_case(first_seed() + i, torch::kFloat64);
    expect_agreement(
        c, "stats",
        [&] {
          auto t = fresh_leaves(c);
          const Tensor out =
              attention_stats(t[0], t[1], t[2], t[3], t[5], c.options_with(t), /*threshold=*/0.05);
          t.erase(t.begin() + 4);  // statistics do not depend on v
          return with_gradients(out, t);
        },
        kStatsTolerance);
  }
}

TEST_P(AgreementTest, Decode) {
  for (int i = 0; i < kCases; ++i) {
    RandomCase c = make_random_case(first_seed() + i, torch::kFloat64);
    if (c.options.cu_seqlens_q()) continue;
    expect_agreement(c, "decode", [&] {
      const auto& t = c.tensors;
      return std::vector{decode(t[0], t[1], t[2], t[3], t[4], t[5], c.options_with(t))};
    });
  }
}

TEST_P(AgreementTest, Maps) {
  for (int i = 0; i < kCases; ++i) {
    const RandomCase c = make_random_case(first_seed() + i, torch::kFloat64);
    const auto& t = c.tensors;
    expect_agreement(c, "map", [&] {
      return std::vector{attention_map(t[0], t[1], t[2], t[3], t[5], c.options_with(t))};
    });
    const bool packed = c.options.cu_seqlens_q().has_value();
    if (packed || t[0].size(1) < 2 || t[2].size(1) < 3) continue;
    const MapOptions part = MapOptions().row_begin(1).col_begin(1).rows(1).cols(2);
    expect_agreement(c, "map cells", [&] {
      return std::vector{attention_map(t[0], t[1], t[2], t[3], t[5], c.options_with(t), part)};
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, AgreementTest, ::testing::ValuesIn(available_cpu_backends()),
                         backend_name);

}  // namespace
}  // namespace diffattn::testing::agreement_test
