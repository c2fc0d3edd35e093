// SPDX-License-Identifier: Apache-2.0
//
// NaN and infinity reach only the rows that see them, and rows that see nothing are zero. Also
// covers the limits of sizes, strides, addresses and magnitudes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/check.h"
#include "tests/support/compare.h"
#include "tests/support/oracle.h"

namespace diffattn::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class SpecialValues : public ::testing::TestWithParam<Target> {
 protected:
  const Backend& backend() const { return *GetParam().backend; }
  Case make(const Spec& spec) const { return Case(spec, GetParam().dtype); }
};

/// Returns a spec in which some columns are hidden, by any of the options, and no tensors share
/// memory.
Spec partly_hidden_spec(uint64_t seed) {
  Spec spec = random_spec(seed, {.seq = 12, .head_dim = 8, .value_dim = 8, .work = 20000});
  Rng rng(seed);
  spec.batch = 2;
  spec.shared_k = spec.shared_q = false;
  spec.query_layout = spec.key_layout = spec.value_layout = Layout::kSlice;
  if (spec.mask == MaskKind::kNone && rng.chance(0.5)) spec.causal = true;
  return spec;
}

/// An input of which one element is poisoned.
struct Poison {
  const char* name;
  std::vector<double> Values::*values;
};
constexpr Poison kPoisons[] = {
    {"q1", &Values::q1},
    {"q2", &Values::q2},
    {"k1", &Values::k1},
    {"k2", &Values::k2},
    {"v", &Values::v},
    {"lambda", &Values::lambda},
    {"norm_weight", &Values::norm_weight},
    {"mask", &Values::mask},
};

/// True if row (b, m, h) depends on element i of that input, given the columns it sees.
bool depends(const Case& c, const Oracle<double>& oracle, const Poison& poison, int64_t i,
             int64_t b, int64_t h, int64_t m) {
  const Spec& s = c.spec;
  const int64_t row = c.row_q(b, m);
  if (oracle.seen[row * s.heads + h] == 0) return false;
  const auto sees_key = [&](int64_t width) {
    const int64_t key = i / (s.kv_heads * width), g = i / width % s.kv_heads;
    const int64_t n = key - c.row_k(b, 0);
    return n >= 0 && n < c.len_k(b) && g == c.kv_head(h) && oracle.visible(b, h, m, n);
  };
  if (poison.values == &Values::q1 || poison.values == &Values::q2) {
    return i / s.head_dim == row * s.heads + h;
  }
  if (poison.values == &Values::k1 || poison.values == &Values::k2) return sees_key(s.head_dim);
  if (poison.values == &Values::v) return sees_key(s.value_dim);
  if (poison.values == &Values::lambda) return i == c.lambda_index(b, m, h);
  if (poison.values == &Values::mask) {
    for (int64_t n = 0; n < c.len_k(b); ++n) {
      if (oracle.visible(b, h, m, n) && c.mask_index(b, h, m, n) == i) return true;
    }
    return false;
  }
  return true;  // the norm weight
}

TEST_P(SpecialValues, NanAndInfinityReachOnlyThoseWhoSeeThem) {
  int64_t poisoned = 0;
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(scaled(10)); ++seed) {
    for (const Poison& poison : kPoisons) {
      for (const double value : {kNan, kInfinity}) {
        Spec spec = partly_hidden_spec(seed * 8 + 100);
        if (poison.values == &Values::norm_weight) spec.norm = spec.norm_weight = true;
        if (poison.values == &Values::mask) {
          spec.mask = MaskKind::kAdditive;
          spec.mask_row = spec.mask_column = true;
        }
        Case c = make(spec);
        std::vector<double>& input = c.values.*poison.values;
        if (input.empty()) continue;
        const std::vector<double> before = run_forward(backend(), c).out;
        const auto i = static_cast<int64_t>(Rng(seed).next() % input.size());
        if (std::isinf(input[i])) continue;  // a hidden entry of the mask would become visible
        const Oracle<double> oracle(c);
        input[i] = value;
        c.store();
        ++poisoned;
        const std::vector<double> after = run_forward(backend(), c).out;
        oracle.for_each_row([&](int64_t b, int64_t h, int64_t m) {
          const bool affected = depends(c, oracle, poison, i, b, h, m);
          const int64_t width = c.spec.value_dim;
          const int64_t at = (c.row_q(b, m) * c.spec.heads + h) * width;
          for (int64_t d = 0; d < width; ++d) {
            if (!affected) {
              ASSERT_TRUE(after[at + d] == before[at + d])
                  << poison.name << "[" << i << "] = " << value << " reached row " << m
                  << " of head " << h << ", entry " << b << ": " << after[at + d] << ", without it "
                  << before[at + d] << "\n  " << c.describe();
            }
            const bool whole_row = poison.values != &Values::norm_weight &&
                                   (poison.values != &Values::v || c.spec.norm);
            const int64_t column = poison.values == &Values::v ? i % width : i;
            if (affected && std::isnan(value) && (whole_row || d == column)) {
              ASSERT_TRUE(std::isnan(after[at + d]))
                  << poison.name << "[" << i << "] = NaN is hidden from row " << m << " of head "
                  << h << ", entry " << b << ": " << after[at + d] << "\n  " << c.describe();
            }
          }
        });
        if (HasFatalFailure()) return;
      }
    }
  }
  EXPECT_GT(poisoned, scaled(10) * 10);
}

TEST_P(SpecialValues, NanInAnyColumnOfATile) {  // also the last, whose bit is a word's sign bit
  const Spec spec{.seed = 31, .seq_q = 66, .seq_k = 66, .causal = true};
  const Case whole = make(spec);
  const std::vector<double> before = run_forward(backend(), whole).out;
  const std::vector<double> gradients = run_backward(backend(), whole).dq1;
  for (const int64_t n : {0, 15, 16, 31, 32, 47, 63, 64}) {
    Case c = make(spec);
    c.values.v[n * spec.value_dim] = c.values.k1[n * spec.head_dim] = kNan;
    c.store();
    const std::vector<double> out = run_forward(backend(), c).out;
    const std::vector<double> dq1 = run_backward(backend(), c).dq1;
    for (int64_t m = 0; m < spec.seq_q; ++m) {
      ASSERT_TRUE(m < n ? out[m * spec.value_dim] == before[m * spec.value_dim]
                        : std::isnan(out[m * spec.value_dim]))
          << "out, row " << m << ", NaN in column " << n;
      ASSERT_TRUE(m < n ? dq1[m * spec.head_dim] == gradients[m * spec.head_dim]
                        : std::isnan(dq1[m * spec.head_dim]))
          << "dq1, row " << m << ", NaN in column " << n;
    }
  }
}

TEST_P(SpecialValues, NanInDoutReachesOnlyWhatItsRowSees) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Case c = make(partly_hidden_spec(seed + 900));
    if (c.values.dout.empty()) continue;
    const BackwardResult before = run_backward(backend(), c);
    const Oracle<double> oracle(c);
    const Spec& s = c.spec;
    const auto i = static_cast<int64_t>(Rng(seed).next() % c.values.dout.size());
    const int64_t poisoned = i / s.value_dim;  // row * heads + h
    c.values.dout[i] = kNan;
    c.store();
    const BackwardResult after = run_backward(backend(), c);
    for (int64_t row = 0; row < c.rows_q() * s.heads; ++row) {
      const bool affected = row == poisoned && oracle.seen[row] > 0;
      for (int64_t d = 0; d < s.head_dim; ++d) {
        const int64_t at = row * s.head_dim + d;
        ASSERT_TRUE(affected ? std::isnan(after.dq1[at]) : after.dq1[at] == before.dq1[at])
            << "dq1[" << at << "] = " << after.dq1[at] << "\n  " << c.describe();
        ASSERT_TRUE(affected ? std::isnan(after.dq2[at]) : after.dq2[at] == before.dq2[at])
            << "dq2[" << at << "] = " << after.dq2[at] << "\n  " << c.describe();
      }
    }
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t n = 0; n < c.len_k(b); ++n) {
        for (int64_t g = 0; g < s.kv_heads; ++g) {
          const int64_t h = poisoned % s.heads, m = poisoned / s.heads - c.row_q(b, 0);
          const bool affected =
              m >= 0 && m < c.len_q(b) && c.kv_head(h) == g && oracle.visible(b, h, m, n);
          const int64_t at = (c.row_k(b, n) * s.kv_heads + g) * s.head_dim;
          for (int64_t d = at; d < at + s.head_dim; ++d) {
            ASSERT_TRUE(affected ? std::isnan(after.dk1[d]) : after.dk1[d] == before.dk1[d])
                << "dk1[" << d << "] = " << after.dk1[d] << "\n  " << c.describe();
          }
        }
      }
    }
  }
}

TEST_P(SpecialValues, RowsThatSeeNothingAreZeroWhateverTheInputs) {
  // Every option that can hide all columns, with inputs that are all NaN.
  for (uint64_t way = 0; way < 5; ++way) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      Spec spec;
      spec.seed = seed;
      spec.batch = 2;
      spec.heads = 4;
      spec.kv_heads = 2;
      spec.seq_q = 3 + static_cast<int64_t>(seed);
      spec.seq_k = 5;
      spec.norm = seed % 2 == 0;
      spec.norm_weight = seed % 4 == 0;
      spec.norm_eps = seed % 3 == 0 ? 0.0 : 1e-5;  // with 0, the norm of a zero row is 0 / 0
      spec.save_o = seed % 2 == 1;
      spec.lambda_shape = static_cast<LambdaShape>(seed % 3);
      spec.key_lengths = way == 0;
      spec.key_starts = way == 1;
      if (way == 2) spec.window = Window::last(0);
      if (way >= 3) spec.mask = way == 3 ? MaskKind::kBoolean : MaskKind::kAdditive;
      spec.mask_hidden = 1.0;
      spec.mask_column = true;
      Case c = make(spec);
      if (way == 0) c.values.key_lengths = {0, 0};
      if (way == 1) c.values.key_starts = {5, 5};
      for (auto* x : {&c.values.q1, &c.values.q2, &c.values.k1, &c.values.k2, &c.values.v,
                      &c.values.dout, &c.values.lambda}) {
        std::fill(x->begin(), x->end(), kNan);
      }
      c.store();
      const ForwardResult forward = run_forward(backend(), c);
      for (const auto* x : {&forward.out, &forward.o, &forward.o2}) {
        for (const double y : *x) ASSERT_EQ(y, 0.0) << c.describe();
      }
      for (const auto* x : {&forward.lse1, &forward.lse2}) {
        for (const double y : *x) ASSERT_EQ(y, -kInfinity) << c.describe();
      }
      const BackwardResult backward = run_backward(backend(), c);
      for (const NamedGradient& gradient : kGradients) {
        for (const double y : backward.*gradient.values) {
          ASSERT_EQ(y, 0.0) << gradient.name << "; " << c.describe();
        }
      }
    }
  }
}

TEST_P(SpecialValues, HugeLogitsPickOneColumn) {
  // q and k are multiples of unit vectors, so that a score is either huge or 0 and both maps are
  // one-hot: out = v[n1] - lambda v[n2] in every type, without overflow.
  const bool is_half = GetParam().dtype == Dtype::kFloat16;
  for (const double size : {100.0, 3e4, is_half ? 6e4 : 1e18}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      Spec spec;
      spec.seed = seed;
      spec.heads = 2;
      spec.seq_q = 7;
      spec.seq_k = 16;
      spec.head_dim = 16;
      spec.value_dim = 8;
      spec.scale = 1.0;
      spec.scale2 = 0.5;
      Case c = make(spec);
      std::vector<double> want;
      Rng rng(seed);
      for (auto* x : {&c.values.q1, &c.values.q2, &c.values.k1, &c.values.k2}) {
        std::fill(x->begin(), x->end(), 0.0);
      }
      for (int64_t n = 0; n < 16; ++n) {
        c.values.k1[n * 16 + n] = c.values.k2[n * 16 + n] = size;
      }
      for (int64_t row = 0; row < 7 * 2; ++row) {
        const int64_t n1 = rng.integer(0, 15), n2 = rng.integer(0, 15);
        c.values.q1[row * 16 + n1] = c.values.q2[row * 16 + n2] = size;
        for (int64_t d = 0; d < 8; ++d) {
          want.push_back(c.values.v[n1 * 8 + d] -
                         c.values.lambda[row % 2] * c.values.v[n2 * 8 + d]);
        }
      }
      c.store();
      const ForwardResult got = run_forward(backend(), c);
      const double unit = unit_roundoff(c.dtype);
      EXPECT_TRUE(all_close(got.out, want, 16 * unit, c.query_dims(8))) << c.describe();
      const double logit = rounded(c.dtype, size) * rounded(c.dtype, size);
      for (const double x : got.lse1)
        ASSERT_NEAR(x, logit, 4 * unit_roundoff(c.accumulator) * logit);
      for (const double x : run_backward(backend(), c).dq1) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

TEST_P(SpecialValues, DecodingWhileScoresRise) {
  // Every few keys a score is far above all earlier ones, at different keys for each row and map.
  // The kernel must rescale the sums of earlier keys at any position within a panel or chunk.
  constexpr int64_t kKeys = 700, kWidth = 64;
  for (const int64_t rows : {1, 2, 3, 4, 8}) {
    const double step = rows == 2 ? 4.0 : 0.5;
    Spec spec;
    spec.heads = rows;
    spec.kv_heads = spec.seq_q = 1;
    spec.seq_k = kKeys;
    spec.head_dim = kWidth;
    spec.value_dim = 2 * kWidth;
    spec.scale = spec.scale2 = 1.0;
    Case c = make(spec);
    for (auto* x : {&c.values.q1, &c.values.q2}) {
      std::fill(x->begin(), x->end(), 0.0);
      for (int64_t r = 0; r < rows; ++r) (*x)[r * kWidth + r] = step;
    }
    for (auto* x : {&c.values.k1, &c.values.k2}) {
      std::fill(x->begin(), x->end(), 0.0);
      const int64_t late = x == &c.values.k2 ? 7 : 0;
      for (int64_t n = 0; n < kKeys; ++n) {
        for (int64_t r = 0; r < rows; ++r) {
          // Exact in every type: at most 88.
          (*x)[n * kWidth + r] = static_cast<double>((n + 9 * r + late) / (8 + r));
        }
      }
    }
    c.store();
    const ForwardResult want = run_forward(cpu_backends().back(), c);  // the reference
    const ForwardResult got = run_forward(backend(), c);
    const double bound = std::max(16 * unit_roundoff(c.dtype), 1e-5);
    EXPECT_TRUE(all_close(got.out, want.out, bound, c.query_dims(2 * kWidth))) << c.describe();
  }
}

/// Targets whose backward works without the lse of the forward: all except CUDA.
class WithoutLse : public SpecialValues {};
std::vector<Target> targets_without_lse() {
  std::vector<Target> list = targets();
  std::erase_if(list, [](const Target& target) {
    return std::string(target.backend->name).starts_with("cuda");
  });
  return list;
}

TEST_P(WithoutLse, GradientsOfHugeLogits) {
  // Without lse the exponentials start relative to 0 and overflow in some rows.
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Spec spec;
    spec.seed = seed;
    spec.heads = 2;
    spec.seq_q = spec.seq_k = 230;
    spec.head_dim = 16 << seed % 2 * 3;
    spec.value_dim = 8;
    spec.scale = spec.scale2 = 80.0 / std::sqrt(static_cast<double>(spec.head_dim));
    spec.causal = seed % 2 == 0;
    spec.norm = spec.save_o = seed > 1;
    const BackwardResult want = run_backward(backend(), make(spec));
    spec.save_lse = false;
    const Case c = make(spec);
    const BackwardResult got = run_backward(backend(), c);
    for (const NamedGradient& gradient : kGradients) {
      double most = 0.0;
      for (const double x : want.*gradient.values) most = std::max(most, std::abs(x));
      const double bound = most * std::max(16 * unit_roundoff(c.dtype), 1e-4);
      EXPECT_TRUE(all_close(got.*gradient.values, want.*gradient.values, bound, {1, 1, 1, 1}))
          << gradient.name << "; " << c.describe();
    }
  }
}

TEST_P(SpecialValues, TheLowestFiniteMaskHidesWithoutNan) {
  // Other frameworks write finfo.min instead of -inf. A row with only such entries gets equal
  // weights; other rows must give the same result as with -inf.
  const double lowest = -static_cast<double>(std::numeric_limits<float>::max());
  for (uint64_t seed = 0; seed < 16; ++seed) {
    Spec spec = partly_hidden_spec(seed + 300);
    spec.varlen = false;
    spec.mask = MaskKind::kAdditive;
    spec.mask_dtype = Dtype::kFloat32;
    spec.mask_row = spec.mask_column = true;
    spec.mask_hidden = 0.4;
    Case c = make(spec);
    const ForwardResult want = run_forward(backend(), c);
    const Oracle<double> hidden(c);
    for (double& x : c.values.mask) x = std::isinf(x) ? lowest : x;
    c.store();
    const ForwardResult got = run_forward(backend(), c);
    const int64_t width = c.spec.value_dim;
    for (int64_t row = 0; row < c.rows_q() * c.spec.heads; ++row) {
      for (int64_t d = row * width; d < (row + 1) * width; ++d) {
        ASSERT_TRUE(std::isfinite(got.out[d])) << c.describe();
        if (hidden.seen[row] > 0) {
          ASSERT_NEAR(got.out[d], want.out[d], ulp(c.dtype, want.out[d])) << c.describe();
        }
      }
    }
  }
}

/// Rows whose mask is finfo.min everywhere, which is common for padding. Their scores vanish in
/// rounding, so all weights are equal, also in every gradient.
TEST_P(SpecialValues, RowsUnderTheLowestFiniteMask) {
  const double lowest = -static_cast<double>(std::numeric_limits<float>::max());
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Spec spec = partly_hidden_spec(seed + 700);
    spec.mask = MaskKind::kAdditive;
    spec.mask_dtype = Dtype::kFloat32;
    spec.mask_row = spec.mask_column = true;
    if (seed % 3 == 0) spec.head_dim = 64, spec.value_dim = 128, spec.scale = spec.scale2 = 0.125;
    Case c = make(spec);
    for (size_t i = 0; i < c.values.mask.size(); ++i) {
      if (i % 3 == 0 || c.values.mask[i] == -kInfinity) c.values.mask[i] = lowest;
    }
    for (int64_t b = 0; b < spec.batch; ++b) {  // in every second row, all entries
      for (int64_t m = 0; m < c.len_q(b); m += 2) {
        for (int64_t h = 0; h < spec.heads; ++h) {
          for (int64_t n = 0; n < c.len_k(b); ++n) c.values.mask[c.mask_index(b, h, m, n)] = lowest;
        }
      }
    }
    c.store();
    Oracle<double> oracle(c);
    const auto expect_close = [&](const char* name, const std::vector<double>& got,
                                  const Measured& want) {
      const double unit =
          8 * unit_roundoff(c.dtype) + 1024 * unit_roundoff(c.accumulator);  // of every term
      const Comparison result = compare(got, want.value, [&](int64_t i) {
        return ulp(c.dtype, want.value[i]) + unit * want.magnitude[i] + 0x1p-30;
      });
      EXPECT_TRUE(result.ok()) << name << ": got " << result.got << ", want " << result.want
                               << ", bound " << result.bound << "\n  " << c.describe();
    };
    expect_close("out", run_forward(backend(), c).out, oracle.forward().out);
    const BackwardResult got = run_backward(backend(), c);
    const BackwardTruth want = oracle.backward();
    expect_close("dq1", got.dq1, want.dq1);
    expect_close("dk2", got.dk2, want.dk2);
    expect_close("dv", got.dv, want.dv);
    expect_close("dlambda", got.dlambda, want.dlambda);
    expect_close("dmask", got.dmask, want.dmask);
  }
}

/// dv distributes the dout of a row over its columns with weights that sum to 1 - lambda. A large
/// number added to all scores of the row must not change that.
TEST_P(SpecialValues, WeightsSumToOneUnderHugeMasks) {
  for (const double bias : {-1e4, -65504.0, -1e6, -1e9, -1e30, 1e6}) {
    Spec spec;
    spec.seed = 21;
    spec.seq_q = 9;
    spec.seq_k = 40;
    spec.head_dim = 64;
    spec.value_dim = 128;
    spec.scale = spec.scale2 = 0.125;
    spec.mask = MaskKind::kAdditive;
    spec.mask_row = true;
    spec.mask_hidden = 0.0;
    Case c = make(spec);
    for (double& x : c.values.mask) x = bias;
    c.store();
    const std::vector<double> dv = run_backward(backend(), c).dv;
    double size = 0.0, error = 0.0;
    for (int64_t d = 0; d < spec.value_dim; ++d) {
      double sum = 0.0, want = 0.0;
      for (int64_t n = 0; n < spec.seq_k; ++n) sum += dv[n * spec.value_dim + d];
      for (int64_t m = 0; m < spec.seq_q; ++m) {
        want += (1.0 - c.values.lambda[c.lambda_index(0, m, 0)]) *
                c.values.dout[m * spec.value_dim + d];
      }
      size += std::abs(want);
      error += std::abs(sum - want);
    }
    EXPECT_LE(error, 0.02 * size) << bias << "; " << c.describe();
  }
}

TEST_P(SpecialValues, SubnormalNumbers) {
  // fp16 subnormals are normal fp32 numbers and must survive. Kernels may flush subnormals of the
  // other types, as matrix instructions do.
  const bool is_half = GetParam().dtype == Dtype::kFloat16;
  const double smallest_normal = GetParam().dtype == Dtype::kFloat64 ? 0x1p-1022
                                 : is_half                           ? 0x1p-14
                                                                     : 0x1p-126;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Spec spec = partly_hidden_spec(seed + 500);
    spec.norm = spec.norm_weight = false;
    Case c = make(spec);
    Rng rng(seed);
    for (double& x : c.values.v) x = smallest_normal * rng.uniform(-1.0, 1.0);
    if (seed % 2 == 0) {
      for (double& x : c.values.k1) x = smallest_normal * rng.uniform(-1.0, 1.0);
    }
    c.store();
    Oracle<double> oracle(c);
    const ForwardTruth truth = oracle.forward();
    const double flushed = is_half ? 0.0 : 4 * smallest_normal;
    const Comparison result =
        compare(run_forward(backend(), c).out, truth.out.value, [&](int64_t i) {
          return flushed + 2 * ulp(c.dtype, truth.out.value[i]) +
                 64 * unit_roundoff(c.dtype) * truth.out.magnitude[i];
        });
    EXPECT_TRUE(result.ok()) << describe(result, c.query_dims(c.spec.value_dim)) << c.describe();
  }
}

TEST_P(SpecialValues, EmptySizes) {
  int64_t cases = 0;
  for (const bool norm : {false, true}) {
    for (int64_t which = 0; which < 6; ++which) {
      for (const bool varlen : {false, true}) {
        Spec spec;
        spec.batch = which == 0 ? 0 : 2;
        spec.heads = spec.kv_heads = which == 1 ? 0 : 2;
        spec.seq_q = which == 2 || which == 5 ? 0 : 3;
        spec.seq_k = which == 3 || which == 5 ? 0 : 4;
        spec.value_dim = which == 4 ? 0 : 8;
        spec.norm = norm;
        spec.save_o = norm;
        spec.varlen = varlen && (which == 0 || which == 1);
        Case c = make(spec);
        const ForwardResult forward = run_forward(backend(), c);
        for (const double x : forward.out) {
          ASSERT_TRUE(which != 3 || x == 0.0) << x << "; " << c.describe();
        }
        // Without rows or columns, every gradient that has elements is written and zero.
        const BackwardResult backward = run_backward(backend(), c);
        if (which == 4) continue;
        for (const NamedGradient& gradient : kGradients) {
          for (const double x : backward.*gradient.values) {
            ASSERT_EQ(x, 0.0) << gradient.name << "; " << c.describe();
          }
        }
        ++cases;
      }
    }
  }
  EXPECT_GT(cases, 0);
}

TEST_P(SpecialValues, AnyAddressAndAnyStride) {
  constexpr Layout kInputLayouts[] = {
      Layout::kBmhd,     Layout::kBhmd,           Layout::kSlice,         Layout::kGapped,
      Layout::kReversed, Layout::kBroadcastBatch, Layout::kBroadcastHead, Layout::kOverlapping};
  Tally tally;
  uint64_t seed = 700;
  for (const Layout input : kInputLayouts) {
    for (const Layout output : {Layout::kBmhd, Layout::kBhmd, Layout::kSlice, Layout::kReversed}) {
      Spec spec = random_spec(++seed, {.seq = 20, .head_dim = 24, .value_dim = 24, .work = 60000});
      spec.query_layout = spec.key_layout = spec.value_layout = input;
      spec.out_layout = output;
      spec.offset = static_cast<int64_t>(seed % 8);
      ASSERT_TRUE(check_forward(GetParam(), spec, tally));
      ASSERT_TRUE(check_backward(GetParam(), spec, tally));
    }
  }
}

TEST_P(SpecialValues, GradientsThatAreNotWantedChangeNothing) {  // bitwise
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Case c = make(random_spec(seed + 4000, {.seq = 12, .head_dim = 8, .value_dim = 8}));
    const BackwardResult all = run_backward(backend(), c);
    const auto wanted = static_cast<unsigned>(Rng(seed).next() & kAllGradients);
    const BackwardResult some = run_backward(backend(), c, wanted);
    for (size_t i = 0; i < std::size(kGradients); ++i) {
      const auto& got = some.*kGradients[i].values;
      if ((wanted >> i & 1u) == 0) {
        EXPECT_TRUE(got.empty());
      } else {
        EXPECT_TRUE(same_bits(got, all.*kGradients[i].values, {}))
            << kGradients[i].name << "; " << c.describe();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, SpecialValues, ::testing::ValuesIn(targets()), target_name);
INSTANTIATE_TEST_SUITE_P(Kernels, WithoutLse, ::testing::ValuesIn(targets_without_lse()),
                         target_name);

}  // namespace
}  // namespace diffattn::testing
