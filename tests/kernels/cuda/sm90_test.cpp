// SPDX-License-Identifier: Apache-2.0
//
// The sm_90 forward kernels: every option at sizes of several tiles, and rows whose sums overflow.
// The tests also check that these kernels are the ones that run.

#include <cmath>
#include <string_view>

#include "diffattn/kernels/cuda.h"
#include "tests/kernels/cuda/backend.h"
#include "tests/support/check.h"

namespace diffattn::testing {
namespace {

struct Widths {
  int64_t head_dim, value_dim;
};
constexpr Widths kWidths[] = {{64, 128}, {128, 256}, {64, 64}, {128, 128}};

class CudaSm90 : public ::testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (usable_capability() != 90) GTEST_SKIP() << "skipped: no GPU of compute capability 9.0";
  }

  void TearDown() override { forward_again_with_known_lse() = false; }

  /// Checks one case, which must run on the sm90 kernels.
  bool check_case(const Case& c, Tally& tally) const {
    EXPECT_TRUE(is_taken(c)) << c.describe();
    return check_forward(GetParam(), c, tally);
  }
  bool check_case(const Spec& spec, Tally& tally) const {
    return check_case(Case(spec, GetParam().dtype), tally);
  }

  static bool is_taken(const Case& c) {
    Tensor out(c.dtype, c.query_dims(c.spec.value_dim), c.spec.out_layout);
    ForwardParams params = c.forward();
    params.out = out.view();
    params.max_capability = capability_limit();
    return std::string_view(cuda::forward_route(params)) == "sm90";
  }
};

/// Returns a spec with two work items of 128 rows and three or four key tiles for two pipeline
/// stages, both with a remainder. Larger sizes would take long, because the host computes the
/// truth.
Spec base_spec(const Widths& widths, uint64_t seed) {
  Spec spec;
  spec.seed = seed;
  spec.batch = spec.heads = 2;
  spec.kv_heads = 1;
  spec.seq_q = 200;
  spec.seq_k = 290;
  spec.head_dim = widths.head_dim;
  spec.value_dim = widths.value_dim;
  spec.scale = spec.scale2 = 1.0 / std::sqrt(static_cast<double>(widths.head_dim));
  spec.save_o = true;
  return spec;
}

/// Returns specs with single options and combinations of them.
std::vector<Spec> option_specs(const Widths& widths) {
  std::vector<Spec> specs;
  const auto add = [&](auto change) {
    Spec spec = base_spec(widths, specs.size() + 1);
    change(spec);
    specs.push_back(spec);
  };
  add([](Spec&) {});
  add([](Spec& s) { s.causal = true; });
  // The rows of one work item see nothing.
  add([](Spec& s) { s.causal = true, s.seq_q = 290, s.seq_k = 130; });
  add([](Spec& s) { s.causal = true, s.seq_q = 1; });
  add([](Spec& s) { s.causal = true, s.seq_q = s.seq_k = 65; });
  add([](Spec& s) { s.window = Window::last(100); });
  add([](Spec& s) { s.window = Window::last(1), s.seq_q = 290; });
  add([](Spec& s) { s.window = Window::last(0); });
  add([](Spec& s) { s.window = {100, 70}; });
  add([](Spec& s) { s.window = {0, 200}, s.key_lengths = true; });
  add([](Spec& s) { s.window = {90, kNoBound}; });
  add([](Spec& s) { s.window = {kNoBound, 75}, s.key_starts = true; });
  add([](Spec& s) { s.window = {150, 10}, s.varlen = true, s.batch = 3; });
  add([](Spec& s) { s.window = Window::last(200), s.key_starts = s.key_lengths = true; });
  add([](Spec& s) { s.key_starts = true, s.causal = true; });
  add([](Spec& s) { s.key_lengths = true; });
  add([](Spec& s) { s.key_lengths = s.align_to_key_lengths = s.causal = true; });
  add([](Spec& s) { s.varlen = true, s.batch = 5; });
  add([](Spec& s) { s.varlen = s.causal = true, s.batch = 5; });
  add([](Spec& s) {
    s.varlen = true, s.window = Window::last(70), s.batch = 3, s.key_starts = true;
  });
  add([](Spec& s) { s.heads = 6, s.kv_heads = 2, s.causal = true; });
  add([](Spec& s) { s.scale2 = s.scale / 2, s.shared_q = s.shared_k = true; });
  add([](Spec& s) { s.shared_k = s.causal = true, s.lambda_shape = LambdaShape::kPerToken; });
  add([](Spec& s) { s.lambda_shape = LambdaShape::kScalar, s.norm = true, s.out_scale = 0.2; });
  add([](Spec& s) { s.norm = s.norm_weight = s.causal = true, s.out_scale = 0.8; });
  add([](Spec& s) { s.save_o = false, s.norm = s.norm_weight = true; });
  add([](Spec& s) { s.save_o = false, s.causal = true, s.out_scale = 0.8; });
  add([](Spec& s) { s.query_layout = s.key_layout = s.value_layout = Layout::kBhmd; });
  add([](Spec& s) { s.out_layout = Layout::kBhmd, s.causal = true; });
  add([](Spec& s) { s.seq_q = 450, s.seq_k = 640, s.causal = true, s.batch = s.heads = 1; });
  return specs;
}

TEST_P(CudaSm90, Options) {
  Tally tally;
  for (const Widths& widths : kWidths) {
    for (const Spec& spec : option_specs(widths)) {
      if (!check_case(spec, tally)) return;
    }
  }
  std::printf("cases %ld, worst share of a bound %.2f, mean error / naive %.2f\n",
              static_cast<long>(tally.cases), tally.worst_share, tally.error / tally.naive_error);
}

/// Recomputes out and o from lse1 and lse2 of the forward (activation checkpointing).
TEST_P(CudaSm90, KnownLse) {
  Tally tally;
  forward_again_with_known_lse() = true;
  for (const Widths& widths : kWidths) {
    for (const Spec& spec : option_specs(widths)) {
      if (!check_case(spec, tally)) return;
    }
    Spec spec = base_spec(widths, 40);
    const Case c(spec, GetParam().dtype);
    Tensor out(GetParam().dtype, c.query_dims(spec.value_dim), spec.out_layout);
    Tensor lse(Dtype::kFloat32, c.query_dims(1), Layout::kBmhd);
    ForwardParams params = c.forward();
    params.out = out.view();
    params.lse1 = params.lse2 = lse.view();
    EXPECT_EQ(cuda::takes_recompute(params), widths.value_dim <= 128);
    spec.logit_spread = 40.0;
    spec.lambda_low = -1.0;
    spec.lambda_shape = LambdaShape::kPerToken;
    if (!check_case(spec, tally)) return;
  }
}

/// Scores so far apart that row sums are rescaled, or overflow and are recomputed.
TEST_P(CudaSm90, LargeScores) {
  Tally tally{.yardstick = false};
  for (const Widths& widths : kWidths) {
    for (const double spread : {6.0, 40.0, 400.0}) {
      for (const bool causal : {false, true}) {
        Spec spec = base_spec(widths, static_cast<uint64_t>(spread));
        spec.logit_spread = spread;
        spec.causal = causal;
        if (!check_case(spec, tally)) return;
      }
    }
  }
}

/// A score in the last tile far above all earlier ones, up to the limit of fp32 exponents. Row sums
/// from 2^126 on are still finite, but their reciprocals are subnormal and flushed to 0.
TEST_P(CudaSm90, OneScoreFarAbove) {
  Tally tally{.yardstick = false};
  for (const Widths& widths : kWidths) {
    for (const double top :
         {20.0, 60.0, 87.0, 87.5, 88.0, 88.5, 89.0, 120.0}) {  // exact in bfloat16
      for (const bool all_outputs : {false, true}) {
        Spec spec = base_spec(widths, 126);
        spec.scale = spec.scale2 = 1.0;
        spec.save_o = spec.norm = all_outputs;
        Case c(spec, GetParam().dtype);
        const auto put = [&](std::vector<double>& x, int64_t row, double value) {
          x[static_cast<size_t>(row * widths.head_dim)] = value;
        };
        for (auto* x : {&c.values.q1, &c.values.q2, &c.values.k1, &c.values.k2}) {
          std::fill(x->begin(), x->end(), 0.0);
        }
        const int64_t rows = spec.batch * spec.seq_q * spec.heads;
        for (int64_t row = 0; row < rows; ++row) put(c.values.q1, row, 1.0);
        for (int64_t row = 0; row < rows; ++row) put(c.values.q2, row, 1.0);
        // [B, N, H, D] and [B, H, N, D] are the same, since there is one kv head.
        for (int64_t b = 0; b < spec.batch; ++b) {
          put(c.values.k2, (b + 1) * spec.seq_k - 1, top);
          put(c.values.k1, (b + 1) * spec.seq_k - 3, top / 2);
        }
        c.store();
        if (!check_case(c, tally)) return;
      }
    }
  }
}

/// Random options that these kernels take, at sizes up to several tiles.
TEST_P(CudaSm90, Random) {
  Tally tally{.yardstick = false};
  const uint64_t seed = run_seed() ^ 0x90a;
  for (int64_t i = 0; i < scaled(60); ++i) {
    SizeLimits limits;
    limits.seq = 400;
    limits.work = 30000000;
    Spec spec = random_spec(seed + static_cast<uint64_t>(i), limits);
    Rng rng(seed ^ static_cast<uint64_t>(i));
    const Widths widths = kWidths[rng.integer(0, std::size(kWidths) - 1)];
    spec.head_dim = widths.head_dim;
    spec.value_dim = widths.value_dim;
    spec.scale = spec.scale2 = 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
    spec.mask = MaskKind::kNone;
    spec.offset = 0;
    // Strides that TMA accepts.
    for (Layout* const layout :
         {&spec.query_layout, &spec.key_layout, &spec.value_layout, &spec.out_layout}) {
      *layout = rng.pick({Layout::kBmhd, Layout::kBhmd});
    }
    if (spec.varlen) spec.batch += 2;  // so that some sequences have rows
    const Case c(spec, GetParam().dtype);
    if (c.rows_q() > 0 && c.rows_k() > 0 && !check_case(c, tally)) return;
  }
}

/// The sm80 kernels give the same result.
TEST_P(CudaSm90, AgreesWithSm80) {
  for (const Widths& widths : kWidths) {
    Spec spec = base_spec(widths, 3);
    spec.causal = true;
    const Case c(spec, GetParam().dtype);
    const std::vector<double> out = run_forward(*GetParam().backend, c).out;
    for (int i = 0; i < 10; ++i) ASSERT_EQ(run_forward(*GetParam().backend, c).out, out);
    const CapabilityLimit limit(80);
    EXPECT_FALSE(is_taken(c));
    const std::vector<double> sm80 = run_forward(*GetParam().backend, c).out;
    const std::vector<double> tolerance = out_tolerance(c);
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], sm80[i], tolerance[i]) << i;
  }
}

/// Additive masks of every type, broadcast or not, some with rows that see nothing; forward and
/// backward.
TEST_P(CudaSm90, Biases) {
  Tally tally;
  backward_routes().clear();
  for (const Dtype dtype : {Dtype::kFloat64, Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat16}) {
    for (uint64_t i = 0; i < 6; ++i) {
      Spec spec = base_spec(kWidths[0], 60 + i);
      spec.seq_q = 140;
      spec.seq_k = 210;
      spec.causal = i % 3 == 0;
      spec.scale2 = i == 1 ? 1.5 * spec.scale : spec.scale;
      spec.mask = MaskKind::kAdditive;
      spec.mask_dtype = dtype;
      spec.mask_batch = i % 2 == 0;
      spec.mask_head = i / 2 % 2 == 0;
      spec.mask_row = i != 4;
      spec.mask_column = true;
      spec.mask_transposed = i == 3;
      spec.mask_hidden = i == 5 ? 0.95 : 0.3;
      const Case c(spec, GetParam().dtype);
      if (!check_case(c, tally)) return;
      backward_in_any_order() = i % 2 == 0;
      const bool agrees = check_backward(GetParam(), c, tally);
      backward_in_any_order() = false;
      if (!agrees) return;
    }
  }
  for (const auto& [route, calls] : backward_routes()) EXPECT_EQ(route, "sm90") << calls;
}

/// Returns a case with an additive mask [M, N]. Most rows have `low` in their first 200 columns, a
/// few in all columns; the other entries fall with the distance |m - n|.
Case case_with_low_biases(Dtype dtype, Dtype mask_dtype, double low, double slope) {
  Spec spec = base_spec(kWidths[0], 80);
  spec.batch = spec.heads = 1;
  spec.seq_q = 140;
  spec.mask = MaskKind::kAdditive;
  spec.mask_dtype = mask_dtype;
  spec.mask_row = spec.mask_column = true;
  Case c(spec, dtype);
  for (int64_t m = 0; m < spec.seq_q; ++m) {
    for (int64_t n = 0; n < spec.seq_k; ++n) {
      const bool far = m / 64 == 1 ? m % 7 == 0 : n < 200 && m % 5 != 0;
      const auto distance = static_cast<double>(std::abs(m - n));
      c.values.mask[m * spec.seq_k + n] = far ? low : -slope * distance;
    }
  }
  c.store();
  return c;
}

double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0.0, size = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / size);
}

/// Mask values that are used like -inf, and sums that overflow. The sm80 kernels must give the same
/// result.
TEST_P(CudaSm90, LowBiases) {
  const Dtype dtype = GetParam().dtype;
  const double lowest = dtype == Dtype::kBFloat16 ? -0x1.fep127 : -65504.0;
  for (const Dtype mask_dtype : {dtype, Dtype::kFloat32}) {
    for (const double low : {-80.0, -1e4, lowest, 300.0}) {
      for (const double slope : {0.01, 3.0}) {
        const Case c = case_with_low_biases(dtype, mask_dtype, low, slope);
        const ForwardResult forward = run_forward(*GetParam().backend, c);
        backward_routes().clear();
        const BackwardResult backward = run_backward(*GetParam().backend, c);
        ASSERT_GT(backward_routes()["sm90"], 0);
        const CapabilityLimit limit(80);
        const ForwardResult sm80 = run_forward(*GetParam().backend, c);
        const BackwardResult gradients = run_backward(*GetParam().backend, c);
        const std::vector<double> tolerance = out_tolerance(c);
        for (size_t i = 0; i < tolerance.size(); ++i) {
          ASSERT_NEAR(forward.out[i], sm80.out[i], tolerance[i]) << i << ", low " << low;
        }
        for (const NamedGradient& gradient : kGradients) {
          if ((gradients.*gradient.values).empty()) continue;
          EXPECT_LE(relative_difference(backward.*gradient.values, gradients.*gradient.values),
                    0.02)
              << gradient.name << ", low " << low << ", slope " << slope;
        }
      }
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSm90);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaSm90, ::testing::ValuesIn(half_targets()), target_name);

}  // namespace
}  // namespace diffattn::testing
