// SPDX-License-Identifier: Apache-2.0
//
// The same call gives the same bits every time, at any address. sequence_laws_test.cpp checks that
// a batch entry gives the same bits whatever else is in the batch.

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/run.h"

namespace diffattn::testing {
namespace {

constexpr int64_t kShapes = 6;  // per element type; the four types use 24 different shapes
constexpr int64_t kRuns = 200;

class Repeatability : public ::testing::TestWithParam<Target> {};

Spec shape(int64_t which) {
  const SizeLimits limits{
      .seq = which == 0 ? 70 : 24, .head_dim = 32, .value_dim = 32, .work = 60000};
  Spec spec = random_spec(static_cast<uint64_t>(which) + 31337, limits);
  spec.lambda_shape = static_cast<LambdaShape>(which % 3);  // a scalar dlambda sums all rows
  spec.norm = which % 2 == 0;
  spec.norm_weight = false;
  return spec;
}

TEST_P(Repeatability, TwoHundredRunsGiveTheSameBits) {
  const Backend& backend = *GetParam().backend;
  for (int64_t which = 0; which < kShapes; ++which) {
    const int64_t own = which * 4 + static_cast<int64_t>(GetParam().dtype);
    const Case c(shape(own), GetParam().dtype);
    const ForwardResult first = run_forward(backend, c);
    const BackwardResult gradients = run_backward(backend, c);
    for (int64_t run = 1; run < scaled(kRuns); ++run) {
      const ForwardResult again = run_forward(backend, c);
      ASSERT_TRUE(same_bits(again.out, first.out, c.query_dims(c.spec.value_dim)))
          << "run " << run << "; " << c.describe();
      ASSERT_TRUE(same_bits(again.lse1, first.lse1, c.query_dims(1))) << c.describe();
      const BackwardResult more = run_backward(backend, c);
      for (const NamedGradient& gradient : kGradients) {
        ASSERT_TRUE(same_bits(more.*gradient.values, gradients.*gradient.values, {}))
            << gradient.name << ", run " << run << "; " << c.describe();
      }
    }
  }
}

TEST_P(Repeatability, SavingIntermediatesDoesNotChangeTheOutput) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Spec spec = random_spec(seed + 77, {.seq = 16, .head_dim = 16, .value_dim = 16});
    spec.save_o = false;
    const Case without(spec, GetParam().dtype);
    spec.save_o = true;
    const Case with(spec, GetParam().dtype);
    EXPECT_TRUE(same_bits(run_forward(*GetParam().backend, with).out,
                          run_forward(*GetParam().backend, without).out,
                          with.query_dims(spec.value_dim)))
        << with.describe();
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Repeatability, ::testing::ValuesIn(targets()), target_name);

}  // namespace
}  // namespace diffattn::testing
