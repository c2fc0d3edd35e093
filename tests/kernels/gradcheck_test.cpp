// SPDX-License-Identifier: Apache-2.0
//
// Whole Jacobians in float64 against central differences, for every differentiable input.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/support/compare.h"
#include "tests/support/run.h"
#include "tests/support/tolerance.h"

namespace diffattn::testing {
namespace {

/// An input and its gradient.
struct Input {
  std::vector<double> Values::*values;
  size_t gradient;  // index into kGradients
};
constexpr Input kInputs[] = {
    {&Values::q1, 0}, {&Values::q2, 1},     {&Values::k1, 2},          {&Values::k2, 3},
    {&Values::v, 4},  {&Values::lambda, 5}, {&Values::norm_weight, 6}, {&Values::mask, 7},
};

/// Returns a spec that is small enough for a whole Jacobian, with any option that affects a
/// derivative.
Spec tiny_spec(uint64_t seed) {
  Rng rng(seed);
  Spec spec;
  spec.seed = seed;
  spec.kv_heads = rng.integer(1, 2);
  spec.heads = spec.kv_heads * rng.integer(1, 2);
  spec.batch = rng.integer(1, 2);
  spec.seq_q = rng.integer(1, 3);
  spec.seq_k = rng.integer(1, 4);
  spec.head_dim = rng.integer(1, 3);
  spec.value_dim = rng.integer(1, 3);
  spec.scale = rng.uniform(0.3, 1.0);
  spec.scale2 = rng.uniform(-1.0, 1.0);
  spec.lambda_shape = static_cast<LambdaShape>(seed % 3);
  spec.lambda_low = -0.8;
  spec.lambda_high = 0.8;  // near 1, the curvature of the norm would need a smaller step
  spec.causal = rng.chance(0.4);
  if (rng.chance(0.2)) spec.window = Window::beside(rng.integer(-1, 2), rng.integer(-1, 2));
  spec.varlen = rng.chance(0.2);
  spec.key_starts = rng.chance(0.2);
  spec.key_lengths = rng.chance(0.2);
  if (rng.chance(0.5)) {
    spec.mask = MaskKind::kAdditive;
    spec.mask_dtype = Dtype::kFloat64;
    spec.mask_batch = rng.chance(0.5);
    spec.mask_head = rng.chance(0.5);
    spec.mask_row = rng.chance(0.7);
    spec.mask_column = rng.chance(0.7);
    spec.mask_transposed = rng.chance(0.3);
    spec.mask_hidden = 0.2;
  }
  spec.norm = seed % 2 == 0;
  spec.norm_weight = seed % 4 == 0;
  spec.norm_eps = 0.1;
  spec.out_scale = rng.pick({1.0, 0.6, -1.3});
  spec.out_layout = rng.pick({Layout::kBmhd, Layout::kBhmd});
  return spec;
}

using Function = std::function<std::vector<double>(const Case&)>;

/// Returns d f / d input[i] for every element of f. Smooth functions use four points; functions
/// with kinks use two points and a short step.
std::vector<double> numeric_derivative(Case& c, const Input& input, size_t i, const Function& f,
                                       double step, bool four_points) {
  const double original = (c.values.*input.values)[i];
  const auto value_at = [&](double x) {
    (c.values.*input.values)[i] = x;
    c.store();
    return f(c);
  };
  std::vector<double> derivative = value_at(original + step);
  const std::vector<double> below = value_at(original - step);
  std::vector<double> far_above, far_below;
  if (four_points) {
    far_above = value_at(original + 2 * step);
    far_below = value_at(original - 2 * step);
  }
  value_at(original);
  for (size_t e = 0; e < derivative.size(); ++e) {
    const double near = derivative[e] - below[e];
    derivative[e] =
        four_points ? (8 * near - (far_above[e] - far_below[e])) / (12 * step) : near / (2 * step);
  }
  return derivative;
}

/// Compares the analytic Jacobian with the numeric one. `row(e)`: the analytic gradients of element
/// e of f.
void check_jacobian(Case& c, const Function& f, double step, bool four_points,
                    const std::function<BackwardResult(size_t)>& row) {
  const size_t outputs = f(c).size();
  std::vector<BackwardResult> analytic;
  for (size_t e = 0; e < outputs; ++e) analytic.push_back(row(e));
  for (const Input& input : kInputs) {
    const NamedGradient& gradient = kGradients[input.gradient];
    for (size_t i = 0; i < (c.values.*input.values).size(); ++i) {
      if (std::isinf((c.values.*input.values)[i]))
        continue;  // a hidden mask entry has no derivative
      const std::vector<double> numeric = numeric_derivative(c, input, i, f, step, four_points);
      for (size_t e = 0; e < outputs; ++e) {
        const std::vector<double>& got = analytic[e].*gradient.values;
        const double have = got.empty() ? 0.0 : got[i];
        ASSERT_NEAR(have, numeric[e], kGradcheckAtol + kGradcheckRtol * std::abs(numeric[e]))
            << gradient.name << "[" << i << "] of output " << e << "\n  " << c.describe();
      }
    }
  }
}

class Gradcheck : public ::testing::TestWithParam<Target> {};

std::vector<Target> double_targets() {
  std::vector<Target> list;
  for (const Target& target : targets()) {
    if (target.dtype == Dtype::kFloat64) list.push_back(target);
  }
  return list;
}

TEST_P(Gradcheck, Backward) {
  for (int64_t seed = 0; seed < scaled(96); ++seed) {
    const Spec spec = tiny_spec(static_cast<uint64_t>(seed));
    Case c(seed % 4 == 3 ? with_noise_heads(spec) : spec, Dtype::kFloat64);
    if (!GetParam().backend->takes(c.problem())) continue;
    const Function f = [&](const Case& x) { return run_forward(*GetParam().backend, x).out; };
    check_jacobian(c, f, kGradcheckStep, true, [&](size_t e) {
      c.values.dout.assign(c.values.dout.size(), 0.0);
      c.values.dout[e] = 1.0;
      c.store();
      return run_backward(*GetParam().backend, c);
    });
    if (HasFatalFailure()) return;
  }
}

TEST_P(Gradcheck, StatsBackward) {
  for (int64_t seed = 0; seed < scaled(48); ++seed) {
    Spec spec = tiny_spec(static_cast<uint64_t>(seed) + 1000);
    spec.lambda_low = seed % 3 == 0 ? -1.5 : 0.1;
    spec.lambda_high = seed % 3 == 0 ? -0.1 : 1.5;
    Case c(spec, Dtype::kFloat64);
    const Function f = [&](const Case& x) {
      std::vector<double> stats = run_stats(*GetParam().backend, x, 1e-3);
      for (size_t i = 0; i < stats.size(); ++i) {
        switch (i % kStatCount) {  // counts and shares have no gradient
          case kStatVisible:
          case kStatSparse:
          case kStatFocus:
          case kStatCoverage: stats[i] = 0.0;
        }
      }
      return stats;
    };
    const size_t count = f(c).size();
    check_jacobian(c, f, kStatsGradcheckStep, false, [&](size_t e) {
      std::vector<double> dstats(count, 0.0);
      dstats[e] = 1.0;
      return run_stats_backward(*GetParam().backend, c, dstats);
    });
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Gradcheck, ::testing::ValuesIn(double_targets()), target_name);

}  // namespace
}  // namespace diffattn::testing
