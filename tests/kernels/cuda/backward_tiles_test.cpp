// SPDX-License-Identifier: Apache-2.0
//
// Backward at the widths for which sm_90 and float32 have special kernels, at sizes of several
// tiles and with every option that changes which tiles are visible. dq is summed both in a fixed
// order and in any order.

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <vector>

#include "tests/kernels/cuda/backend.h"
#include "tests/support/check.h"
#include "tests/support/naive.h"
#include "tests/support/oracle.h"
#include "tests/support/tolerance.h"

namespace diffattn::testing {
namespace {

class CudaBackwardTiles : public ::testing::TestWithParam<Target> {
 protected:
  void TearDown() override { backward_in_any_order() = forward_again_with_known_lse() = false; }
};

struct Widths {
  int64_t head_dim, value_dim;
};
constexpr Widths kWidths[] = {{64, 64}, {64, 128}, {128, 256}, {128, 128}};

Spec base_spec(uint64_t seed, int64_t seq_q, int64_t seq_k, const Widths& widths) {
  Spec spec;
  spec.seed = seed;
  spec.heads = spec.kv_heads = 2;
  spec.seq_q = seq_q;
  spec.seq_k = seq_k;
  spec.head_dim = widths.head_dim;
  spec.value_dim = widths.value_dim;
  spec.scale = spec.scale2 = 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
  spec.lambda_low = 0.1;
  spec.save_o = true;
  return spec;
}

/// Returns changes to the base spec; check_all combines each of them with every size.
const std::vector<std::function<void(Spec&)>>& changes() {
  static const std::vector<std::function<void(Spec&)>> list{
      [](Spec&) {},
      [](Spec& s) { s.causal = true; },
      [](Spec& s) { s.causal = true, s.norm = s.norm_weight = true, s.out_scale = 0.8; },
      [](Spec& s) { s.window = Window::last(70), s.lambda_shape = LambdaShape::kScalar; },
      [](Spec& s) { s.window = Window::last(200), s.scale2 = 0.07, s.save_o = false; },
      [](Spec& s) {
        s.window = {70, 130};
      },
      [](Spec& s) {
        s.window = {100, kNoBound};
      },
      [](Spec& s) {
        s.window = {kNoBound, 90};
      },
      [](Spec& s) { s.batch = 3, s.key_lengths = true, s.causal = true; },
      [](Spec& s) { s.batch = 2, s.key_lengths = s.key_starts = true; },
      [](Spec& s) { s.heads = 8, s.causal = true, s.lambda_shape = LambdaShape::kPerToken; },
      [](Spec& s) { s.heads = 6, s.kv_heads = 3, s.lambda_low = -0.9, s.lambda_high = 0.9; },
      [](Spec& s) { s.batch = 4, s.varlen = s.causal = true; },
      [](Spec& s) { s.batch = 3, s.varlen = true, s.heads = 4, s.norm = true, s.shared_k = true; },
      [](Spec& s) { s.lambda_low = -1.0, s.lambda_high = -0.1, s.causal = s.shared_k = true; },
      [](Spec& s) { s.query_layout = Layout::kBhmd, s.key_layout = Layout::kSlice; },
      [](Spec& s) {
        s.heads = 4, s.mask = MaskKind::kBoolean;
        s.mask_head = s.mask_row = s.mask_column = true;
      },
      // Lambda of both signs within one unit of rows, and a negative scale: the sm90 kernels leave
      // them to the repair kernels or do not take them.
      [](Spec& s) { s.lambda_low = -1.0, s.lambda_shape = LambdaShape::kPerToken; },
      [](Spec& s) { s.scale2 = -0.1, s.causal = true; },
  };
  return list;
}

struct Size {
  int64_t seq_q, seq_k;
};

void check_all(const Target& target, const std::vector<Size>& sizes, Tally& tally) {
  uint64_t seed = run_seed() ^ 0x90;
  for (const Size size : sizes) {
    for (const auto& change : changes()) {
      ++seed;
      Spec spec = base_spec(seed, size.seq_q, size.seq_k, kWidths[seed % std::size(kWidths)]);
      change(spec);
      if (!check_backward(target, spec, tally)) return;
    }
  }
}

TEST_P(CudaBackwardTiles, InOrder) {
  Tally tally{.yardstick = false};
  backward_routes().clear();
  check_all(GetParam(), {{65, 129}, {200, 330}}, tally);
  for (const auto& [route, calls] : backward_routes()) {
    std::printf("%s: %ld backward calls\n", route.c_str(), static_cast<long>(calls));
  }
  const char* route = usable_capability() == 90 ? "sm90" : "sm80";
  if (GetParam().dtype == Dtype::kFloat32) route = has_float_matrix_kernels() ? "tf32" : "simt";
  EXPECT_GE(backward_routes()[route], tally.cases / 2) << route;
  std::printf("cases %ld, worst share of a bound %.2f, mean error / naive %.2f\n",
              static_cast<long>(tally.cases), tally.worst_share, tally.error / tally.naive_error);
}

TEST_P(CudaBackwardTiles, InAnyOrder) {
  backward_in_any_order() = true;
  Tally tally{.yardstick = false};
  check_all(GetParam(), {{1, 1}, {64, 128}, {300, 180}}, tally);
}

/// Runs every forward and backward kernel once, at the smallest sizes with two tiles. This is for
/// compute-sanitizer, under which the other tests take minutes.
TEST_P(CudaBackwardTiles, Smallest) {
  Tally tally{.yardstick = false};
  forward_again_with_known_lse() = true;
  for (const bool any_order : {false, true}) {
    backward_in_any_order() = any_order;
    for (const Widths& widths : kWidths) {
      Spec spec = base_spec(17, 65, 129, widths);
      spec.heads = spec.kv_heads = 1;
      spec.causal = true;
      spec.norm = spec.norm_weight = any_order;
      if (!check_forward(GetParam(), spec, tally)) return;
      if (!check_backward(GetParam(), spec, tally)) return;
    }
  }
}

/// With a head norm, dO is nearly orthogonal to O. If a row sees one key, o2 is parallel to O, so
/// the terms of dlambda = -dO.o2 nearly cancel. dO must not be rounded before that sum.
TEST_P(CudaBackwardTiles, LambdaUnderANorm) {
  for (const Widths& widths : kWidths) {
    Spec spec = base_spec(23, 100, 1, widths);
    spec.norm = true;
    spec.norm_eps = 1e-3;
    spec.lambda_low = 0.9, spec.lambda_high = 0.95;
    spec.lambda_shape = LambdaShape::kPerToken;
    const Case c(spec, GetParam().dtype);
    const std::vector<double> got = run_backward(*GetParam().backend, c).dlambda;
    const std::vector<double> want = Oracle<double>(c).backward().dlambda.value;
    for (int64_t m = 0; m < spec.seq_q; ++m) {
      const int64_t at = m * spec.heads;  // row m of head 0
      const double share = 1.0 - c.values.lambda[at];
      double squares = 0.0, size = 0.0;
      for (int64_t d = 0; d < spec.value_dim; ++d) {
        squares += std::pow(share * c.values.v[d], 2);
        size += std::abs(c.values.dout[at * spec.value_dim + d] * c.values.v[d]);
      }
      size /= std::sqrt(squares / static_cast<double>(spec.value_dim) + spec.norm_eps);
      ASSERT_NEAR(got[at], want[at], 0x1p-13 * size) << "row " << m << "; " << c.describe();
    }
  }
}

/// Thousands of rows share one lambda, so that several thread blocks contribute to dlambda.
TEST_P(CudaBackwardTiles, LambdaOfManyRows) {
  Tally tally{.yardstick = false};
  for (const LambdaShape shape : {LambdaShape::kScalar, LambdaShape::kPerHead}) {
    for (const bool varlen : {false, true}) {
      Spec spec = base_spec(29, 1100, 5, {64, 128});
      spec.batch = 5;
      spec.varlen = varlen;
      spec.lambda_shape = shape;
      if (!check_backward(GetParam(), spec, tally)) return;
    }
  }
}

class CudaPeakedRows : public ::testing::TestWithParam<Target> {};

/// Calls f(spec) for short rows whose probabilities are nearly 0 or 1. In float32, value_dim is at
/// least 8: delta1 = dO.O + lambda dO.o2 has the rounding error of lambda o2, and with a single
/// value column o2 can be many times larger than o1.
template <class F>
void for_each_peaked(Dtype dtype, double spread, uint64_t seeds, F f) {
  const int64_t narrowest = dtype == Dtype::kFloat32 ? 8 : 1;
  for (const int64_t seq : {2, 5, 16, 70}) {
    for (const int64_t head_dim : {1, 16, 64, 128}) {
      for (uint64_t seed = 1; seed <= seeds; ++seed) {
        const int64_t value_dim = head_dim == 1   ? narrowest
                                  : seed % 4 == 0 ? head_dim
                                                  : 2 * head_dim;
        Spec spec = base_spec(run_seed() + seed, seq, seq, {head_dim, value_dim});
        spec.logit_spread = spread;
        spec.causal = seed % 2 == 0;
        spec.norm = seed % 3 == 0;
        if (!f(spec)) return;
      }
    }
  }
}

/// In such rows dP - delta cancels, so delta needs more bits than a 16-bit type has.
TEST_P(CudaPeakedRows, Agree) {
  Tally tally{.yardstick = false};
  const auto agrees = [&](const Spec& spec) { return check_backward(GetParam(), spec, tally); };
  const Dtype dtype = GetParam().dtype;
  for_each_peaked(dtype, 6.0, 4, agrees);
  if (dtype != Dtype::kFloat32) for_each_peaked(dtype, 40.0, 4, agrees);
  std::printf("cases %ld, worst share of a bound %.2f\n", static_cast<long>(tally.cases),
              tally.worst_share);
}

/// One gradient of the kernel, the oracle and naive float32, and its errors summed over cases.
struct ErrorsOfPeaked {
  const char* name;
  std::vector<double> BackwardResult::*got;
  Measured BackwardTruth::*want;
  std::vector<double> NaiveBackward::*naive;
  double error = 0.0, naive_error = 0.0;

  /// Returns the relative error as tolerance.h defines it for float32.
  static double error_of(const std::vector<double>& got, const Measured& want) {
    double squares = 0.0, truth = 0.0, magnitude = 0.0;
    for (size_t i = 0; i < got.size(); ++i) {
      squares += std::pow(got[i] - want.value[i], 2);
      truth += std::pow(want.value[i], 2);
      magnitude += std::pow(kCancellationShare * want.magnitude[i], 2);
    }
    return squares == 0.0 ? 0.0 : std::sqrt(squares / std::max(truth, magnitude));
  }
};

class CudaPeakedFloat32 : public ::testing::TestWithParam<Target> {};

/// With scores in the hundreds, the rounding of a score alone changes probabilities by more than
/// the float32 bound, in any float32 code. The kernels must not add to that, for instance by
/// rounding lse: on average their errors stay below those of naive float32. (Measured on an H200:
/// 0.64 to 0.86 of naive, dv 0.51 to 0.69.)
TEST_P(CudaPeakedFloat32, NoWorseThanNaive) {
  using R = BackwardResult;
  using T = BackwardTruth;
  using N = NaiveBackward;
  ErrorsOfPeaked list[] = {{"dq1", &R::dq1, &T::dq1, &N::dq1},
                           {"dq2", &R::dq2, &T::dq2, &N::dq2},
                           {"dk1", &R::dk1, &T::dk1, &N::dk1},
                           {"dk2", &R::dk2, &T::dk2, &N::dk2},
                           {"dv", &R::dv, &T::dv, &N::dv}};
  for_each_peaked(Dtype::kFloat32, 40.0, 8, [&](const Spec& spec) {
    const Case c(spec, Dtype::kFloat32);
    const Oracle<double> oracle(c);
    const BackwardTruth want = oracle.backward();
    const NaiveBackward naive = Naive<float>(oracle).backward();
    const BackwardResult got = run_backward(*GetParam().backend, c);
    for (ErrorsOfPeaked& x : list) {
      x.error += x.error_of(got.*x.got, want.*x.want);
      x.naive_error += x.error_of(naive.*x.naive, want.*x.want);
    }
    return true;
  });
  double error = 0.0, naive_error = 0.0;
  for (const ErrorsOfPeaked& x : list) {
    std::printf("%s: mean error / naive %.2f\n", x.name, x.error / x.naive_error);
    error += x.error, naive_error += x.naive_error;
  }
  std::printf("all: mean error / naive %.2f\n", error / naive_error);
  const ErrorsOfPeaked& dv = std::end(list)[-1];
  EXPECT_LE(dv.error, kBackwardMeanRatio * dv.naive_error);  // dv depends on little but p
  EXPECT_LE(error, kBackwardMeanRatio * naive_error);
}

/// Many tiles add to the same rows of dq at the same time.
TEST_P(CudaBackwardTiles, SameBitsInOrder) {
  for (const Widths& widths : kWidths) {
    Spec spec = base_spec(9, 700, 900, widths);
    spec.heads = 8;
    spec.causal = widths.head_dim == 64;
    const Case c(spec, GetParam().dtype);
    const BackwardResult first = run_backward(*GetParam().backend, c);
    for (int64_t i = 0; i < scaled(10); ++i) {
      const BackwardResult again = run_backward(*GetParam().backend, c);
      for (const NamedGradient& gradient : kGradients) {
        ASSERT_EQ(again.*gradient.values, first.*gradient.values) << gradient.name;
      }
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaPeakedRows);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaPeakedRows, ::testing::ValuesIn(cuda_targets()), target_name);

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaPeakedFloat32);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaPeakedFloat32, ::testing::ValuesIn(float_targets()),
                         target_name);

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaBackwardTiles);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaBackwardTiles, ::testing::ValuesIn(cuda_targets()), target_name);

}  // namespace
}  // namespace diffattn::testing
