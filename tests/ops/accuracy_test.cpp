// SPDX-License-Identifier: Apache-2.0
//
// float32 on the CPU: the error of every backend against float64 is at most that of matmul, softmax
// and matmul in float32, in the Frobenius norm and in the mean. Thousands of keys, where the order
// of the sums decides.

#include <gtest/gtest.h>

#include "diffattn/ops.h"
#include "tests/ops/backends.h"

namespace diffattn::testing::accuracy_test {
namespace {

using torch::Tensor;

struct Inputs {
  Tensor q1, q2, k1, k2, v;  // [1, M or N, H, D or 2 D]

  Inputs to(torch::ScalarType type) const {
    return {q1.to(type), q2.to(type), k1.to(type), k2.to(type), v.to(type)};
  }
};

constexpr double kLambda = 0.8;

Tensor naive(const Inputs& in, bool causal) {
  const auto heads_first = [](const Tensor& x) { return x.transpose(1, 2); };
  const int64_t rows = in.q1.size(1), columns = in.k1.size(1);
  const double scale = 1.0 / std::sqrt(static_cast<double>(in.q1.size(-1)));
  const Tensor hidden = causal ? torch::ones({rows, columns}, torch::kBool).triu(columns - rows + 1)
                               : torch::zeros({rows, columns}, torch::kBool);
  const auto map = [&](const Tensor& q, const Tensor& k) {
    const Tensor scores = heads_first(q).matmul(heads_first(k).transpose(-1, -2)) * scale;
    return scores.masked_fill(hidden, -INFINITY).softmax(-1);
  };
  const Tensor difference = map(in.q1, in.k1) - kLambda * map(in.q2, in.k2);
  return difference.matmul(heads_first(in.v)).transpose(1, 2);
}

struct Error {
  double norm, mean;
};

Error error_of(const Tensor& got, const Tensor& want) {
  const Tensor error = got.to(torch::kFloat64) - want;
  return {(error.norm() / want.norm()).item<double>(), error.abs().mean().item<double>()};
}

class Accuracy : public ::testing::TestWithParam<CpuBackend> {
 protected:
  void TearDown() override { limit_backend(""); }
};

TEST_P(Accuracy, Float32IsNoWorseThanMatmulAndSoftmax) {
  torch::manual_seed(7);
  const torch::NoGradGuard no_grad;
  limit_backend(GetParam().name);
  const int64_t rows = 512, columns = 2048, heads = 2;
  for (const int64_t d : {64, 128}) {
    const Inputs in{torch::randn({1, rows, heads, d}), torch::randn({1, rows, heads, d}),
                    torch::randn({1, columns, heads, d}), torch::randn({1, columns, heads, d}),
                    torch::randn({1, columns, heads, 2 * d})};
    for (const bool causal : {false, true}) {
      const Tensor exact = naive(in.to(torch::kFloat64), causal);
      const Error theirs = error_of(naive(in, causal), exact);
      const Error ours =
          error_of(attention(in.q1, in.q2, in.k1, in.k2, in.v, torch::tensor(kLambda),
                             AttentionOptions().causal(causal)),
                   exact);
      EXPECT_LE(ours.norm, theirs.norm) << "d = " << d << (causal ? ", causal" : "");
      EXPECT_LE(ours.mean, theirs.mean) << "d = " << d << (causal ? ", causal" : "");
    }
  }
}

/// The composed backend is matmul and softmax itself.
std::vector<CpuBackend> kernel_backends() {
  std::vector<CpuBackend> result = available_cpu_backends();
  std::erase_if(result, [](const CpuBackend& backend) { return backend.name == "composed"; });
  return result;
}

INSTANTIATE_TEST_SUITE_P(Cpu, Accuracy, ::testing::ValuesIn(kernel_backends()), backend_name);

}  // namespace
}  // namespace diffattn::testing::accuracy_test
