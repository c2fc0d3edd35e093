// SPDX-License-Identifier: Apache-2.0
//
// Tests of the test support itself: an error that it misses, every other test misses too.

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/support/compare.h"
#include "tests/support/naive.h"
#include "tests/support/oracle.h"
#include "tests/support/run.h"

namespace diffattn::testing {
namespace {

constexpr Dtype kDtypes[] = {Dtype::kFloat64, Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat16};
constexpr Layout kLayouts[] = {Layout::kBmhd, Layout::kBhmd, Layout::kSlice, Layout::kGapped,
                               Layout::kReversed};

TEST(Support, UlpOfEveryType) {
  EXPECT_EQ(ulp(Dtype::kFloat64, 1.0), 0x1p-52);
  EXPECT_EQ(ulp(Dtype::kFloat32, 1.0), 0x1p-23);
  EXPECT_EQ(ulp(Dtype::kBFloat16, -1.5), 0x1p-7);
  EXPECT_EQ(ulp(Dtype::kFloat16, 2.0), 0x1p-9);
  EXPECT_EQ(ulp(Dtype::kFloat16, 0.0), 0x1p-24);
  EXPECT_EQ(ulp(Dtype::kFloat16, 1e-7), 0x1p-24);
  EXPECT_EQ(ulp(Dtype::kBFloat16, 0.0), 0x1p-133);
  for (const Dtype dtype : kDtypes) {
    const double one = 1.0 + ulp(dtype, 1.0);
    EXPECT_EQ(rounded(dtype, one), one);
    EXPECT_NE(rounded(dtype, 1.0 + 0.75 * ulp(dtype, 1.0)), 1.0);
    EXPECT_EQ(unit_roundoff(dtype), ulp(dtype, 1.0) / 2);
  }
}

TEST(Support, ComparisonNamesTheWorstElement) {
  const Dims dims{1, 2, 1, 3};
  const std::vector<double> want{1, 2, 3, 4, 5, 6};
  std::vector<double> got = want;
  EXPECT_TRUE(all_close(got, want, 0.0, dims));
  got[4] += 0.5;
  got[1] += 0.25;
  const Comparison result = compare(got, want, [](int64_t) { return 0.1; });
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.worst, 4);
  EXPECT_EQ(result.max_error, 0.5);
  EXPECT_DOUBLE_EQ(result.mean_error, 0.125);
  EXPECT_NE(describe(result, dims).find("[0, 1, 0, 1]"), std::string::npos)
      << describe(result, dims);
  EXPECT_FALSE(all_close(got, want, 0.4, dims));
}

TEST(Support, ComparisonSeesNanInfinityAndZeroBounds) {
  const double nan = NAN, infinity = INFINITY;
  EXPECT_FALSE(all_close({nan}, {0.0}, 1e9, {}));
  EXPECT_FALSE(all_close({0.0}, {nan}, 1e9, {}));
  EXPECT_FALSE(all_close({infinity}, {1.0}, infinity, {}));
  EXPECT_FALSE(all_close({infinity}, {-infinity}, infinity, {}));
  EXPECT_TRUE(all_close({nan, infinity}, {nan, infinity}, 0.0, {}));
  EXPECT_FALSE(all_close({1e-300}, {0.0}, 0.0, {}));
  EXPECT_FALSE(all_close({0.0, 0.0}, {0.0}, 1.0, {}));
  EXPECT_FALSE(same_bits({0.0}, {-0.0}, {}));
}

TEST(Support, TensorsKeepTheirValuesInEveryLayout) {
  for (const Dtype dtype : kDtypes) {
    for (const Layout layout : kLayouts) {
      Tensor tensor(dtype, {2, 3, 2, 5}, layout, 1);
      std::vector<double> values(60);
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
      tensor.set(values);
      EXPECT_EQ(tensor.get(), values);
      const View<const void> view = tensor.input();
      const int64_t at = 1 * view.batch_stride + 2 * view.seq_stride + 1 * view.head_stride + 4;
      EXPECT_EQ(load(dtype, view.data, at), 59.0) << name_of(layout);
    }
  }
}

TEST(Support, CanariesNoticeEveryNeighbour) {
  for (const Layout layout : kLayouts) {
    Tensor tensor(Dtype::kBFloat16, {2, 3, 2, 5}, layout, 3);
    tensor.make_output();
    for (const double x : tensor.get()) EXPECT_TRUE(std::isnan(x));
    EXPECT_EQ(tensor.damage(), "");
    tensor.set(std::vector<double>(60, 1.0));
    EXPECT_EQ(tensor.damage(), "") << name_of(layout);
    const int64_t last =
        layout == Layout::kReversed ? 5 : 0;  // one past the end, or one before begin
    store(Dtype::kBFloat16, tensor.data(), last - (last == 0 ? 1 : 0), 1.0);
    EXPECT_NE(tensor.damage(), "") << name_of(layout);
  }
}

TEST(Support, UnwrittenOutputsAreSeen) {
  // A backend that does nothing must fail in every output.
  const Backend idle{"idle",
                     "",
                     [] { return true; },
                     [](const Problem&) { return true; },
                     [](const ForwardParams&) {},
                     [](const BackwardParams&) {},
                     [](const StatsParams&) {},
                     [](const StatsBackwardParams&) {},
                     [](const MapParams&) {}};
  Spec spec;
  spec.save_o = true;
  spec.norm = true;
  const Case c(spec, Dtype::kFloat32);
  const ForwardResult forward = run_forward(idle, c);
  for (const auto* x : {&forward.out, &forward.lse1, &forward.lse2, &forward.o, &forward.o2}) {
    for (const double y : *x) EXPECT_TRUE(std::isnan(y));
  }
  const BackwardResult backward = run_backward(idle, c);
  for (const double y : backward.dlambda) EXPECT_TRUE(std::isnan(y));
  for (const double y : backward.dk2) EXPECT_TRUE(std::isnan(y));
}

TEST(Support, TheSameSpecHoldsTheSameNumbersInEveryType) {
  const Spec spec = random_spec(5);
  const Case wide(spec, Dtype::kFloat64), narrow(spec, Dtype::kBFloat16);
  ASSERT_EQ(wide.values.k2.size(), narrow.values.k2.size());
  for (size_t i = 0; i < wide.values.k2.size(); ++i) {
    EXPECT_EQ(rounded(Dtype::kBFloat16, wide.values.k2[i]), narrow.values.k2[i]);
  }
}

TEST(Support, RandomSpecsReachEveryOption) {
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const std::string text = to_string(random_spec(seed));
    for (const char* option : {" causal",        " left=",     " right=",     " starts",
                               " lengths",       "(aligned)",  " varlen",     "mask=boolean",
                               "mask=additive",  "^T",         " norm",       "+weight",
                               " out_scale",     " shared_k",  " shared_q",   "lambda=scalar",
                               "lambda=H",       "lambda=BMH", "overlapping", "broadcast_batch",
                               "broadcast_head", "reversed",   "gapped",      "slice",
                               "bhmd",           "+3",         " save_o",     "H=8/1"}) {
      if (text.find(option) != std::string::npos) seen.insert(option);
    }
  }
  EXPECT_EQ(seen.size(), 28u);
}

/// Returns the relative Frobenius errors of the naive code, for out and dq1.
template <class T>
std::pair<double, double> naive_errors(Dtype dtype) {
  Spec spec;
  spec.heads = 2;
  spec.seq_q = spec.seq_k = 48;
  spec.head_dim = 32;
  spec.value_dim = 32;
  spec.scale = spec.scale2 = 1.0 / std::sqrt(32.0);
  spec.causal = true;
  const Case c(spec, dtype);
  Oracle<double> oracle(c);
  const ForwardTruth forward = oracle.forward();
  const BackwardTruth backward = oracle.backward();
  Naive<T> naive(oracle);
  const auto none = [](int64_t) { return 1.0; };
  return {compare(naive.forward().out, forward.out.value, none).relative_frobenius,
          compare(naive.backward().dq1, backward.dq1.value, none).relative_frobenius};
}

TEST(Support, TheYardstickIsNeitherBrokenNorTooGood) {
  // If the naive code were wrong, it would allow any error. These are the errors it should have.
  const auto [float_out, float_dq] = naive_errors<float>(Dtype::kFloat32);
  EXPECT_LT(float_out, 1e-6);
  EXPECT_LT(float_dq, 1e-6);
  const auto [bf16_out, bf16_dq] = naive_errors<BFloat16>(Dtype::kBFloat16);
  EXPECT_GT(bf16_out, 2e-3);
  EXPECT_LT(bf16_out, 8e-3);
  EXPECT_LT(bf16_dq, 2e-2);
  const auto [fp16_out, fp16_dq] = naive_errors<Float16>(Dtype::kFloat16);
  EXPECT_LT(fp16_out, 1e-3);
  EXPECT_LT(fp16_dq, 2e-3);
}

}  // namespace
}  // namespace diffattn::testing
