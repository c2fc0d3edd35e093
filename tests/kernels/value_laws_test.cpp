// SPDX-License-Identifier: Apache-2.0
//
// Laws about values: how the output must change when lambda, queries, keys, values or heads change
// in a known way. They hold for any correct implementation and need no reference result.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/laws.h"

namespace diffattn::testing {
namespace {

class ValueLaw : public Law {};

TEST_P(ValueLaw, LambdaZeroIsOrdinaryAttention) {
  for_each_seed(1000, [&](uint64_t seed) {
    Spec spec = open_spec(seed);
    spec.lambda_low = spec.lambda_high = 0.0;
    spec.norm = spec.norm_weight = false;
    spec.causal = seed % 2 == 0;
    Case c = make(spec);
    // Ordinary attention, written out with one softmax.
    std::vector<double> want(c.values.dout.size(), 0.0);
    for (int64_t row = 0; row < c.rows_q(); ++row) {
      for (int64_t h = 0; h < spec.heads; ++h) {
        const int64_t b = row / spec.seq_q, g = h / (spec.heads / spec.kv_heads);
        const int64_t last = row % spec.seq_q + spec.seq_k - spec.seq_q;
        double sum = 0.0;
        double* o = &want[(row * spec.heads + h) * spec.value_dim];
        for (int64_t n = 0; n < spec.seq_k && (!spec.causal || n <= last); ++n) {
          const int64_t key = (b * spec.seq_k + n) * spec.kv_heads + g;
          double score = 0.0;
          for (int64_t d = 0; d < spec.head_dim; ++d) {
            score += c.values.q1[(row * spec.heads + h) * spec.head_dim + d] *
                     c.values.k1[key * spec.head_dim + d];
          }
          const double weight = std::exp(score * spec.scale);
          sum += weight;
          for (int64_t d = 0; d < spec.value_dim; ++d) {
            o[d] += weight * c.values.v[key * spec.value_dim + d];
          }
        }
        for (int64_t d = 0; d < spec.value_dim && sum > 0; ++d) o[d] *= spec.out_scale / sum;
      }
    }
    expect_same(c, out(c), want);
  });
}

TEST_P(ValueLaw, EqualMapsGiveOneMinusLambda) {
  for_each_seed(2000, [&](uint64_t seed) {
    Spec spec = open_spec(seed);
    spec.shared_q = spec.shared_k = true;
    spec.scale2 = spec.scale;
    spec.norm = spec.norm_weight = false;
    spec.lambda_shape = LambdaShape::kScalar;
    Case c = make(spec);
    const double lambda = c.values.lambda[0];
    const std::vector<double> got = out(c);
    c.values.lambda[0] = 0.0;
    c.store();
    std::vector<double> want = out(c);
    for (double& x : want) x *= 1.0 - lambda;
    c.values.lambda[0] = lambda;
    c.store();
    expect_same(c, got, want);
  });
}

TEST_P(ValueLaw, EqualMapsAndLambdaOneCancel) {
  for_each_seed(2500, [&](uint64_t seed) {
    Spec spec = open_spec(seed);
    spec.shared_q = spec.shared_k = true;
    spec.scale2 = spec.scale;
    spec.norm = spec.norm_weight = false;
    spec.lambda_low = spec.lambda_high = 1.0;
    const Case c = make(spec);
    expect_same(c, out(c), std::vector<double>(c.values.dout.size(), 0.0));
  });
}

TEST_P(ValueLaw, LambdaKeepsItsPrecision) {
  // lambda is fp32 even if the inputs are bf16. With equal maps and lambda = 1 + 2^-12 the output
  // is -2^-12 times ordinary attention; it would be 0 if lambda were rounded to bf16.
  for_each_seed(2700, [&](uint64_t seed) {
    Spec spec = open_spec(seed);
    spec.shared_q = spec.shared_k = true;
    spec.scale2 = spec.scale;
    spec.norm = spec.norm_weight = false;
    spec.out_scale = 1.0;
    spec.lambda_low = spec.lambda_high = 0.0;
    const Case plain = make(spec);
    spec.lambda_low = spec.lambda_high = 1.0 + 0x1p-12;
    const Case c = make(spec);
    const std::vector<double> ordinary = out(plain), got = out(c);
    for (size_t i = 0; i < got.size(); ++i) {
      const double want = -0x1p-12 * ordinary[i];
      ASSERT_NEAR(got[i], want, 0x1p-12 * (0.02 + 0.05 * std::abs(ordinary[i]))) << c.describe();
    }
  });
}

TEST_P(ValueLaw, RowsOfTheMapSumToOneMinusLambda) {
  for_each_seed(3000, [&](uint64_t seed) {
    Spec spec = open_spec(seed);
    spec.norm = spec.norm_weight = false;
    spec.out_scale = 1.0;
    Case c = make(spec);
    std::fill(c.values.v.begin(), c.values.v.end(), 1.0);
    c.store();
    std::vector<double> want(c.values.dout.size());
    for (int64_t row = 0; row < c.rows_q(); ++row) {
      for (int64_t h = 0; h < spec.heads; ++h) {
        const double lambda =
            c.values.lambda[c.lambda_index(row / spec.seq_q, row % spec.seq_q, h)];
        std::fill_n(&want[(row * spec.heads + h) * spec.value_dim], spec.value_dim, 1.0 - lambda);
      }
    }
    expect_same(c, out(c), want);
  });
}

TEST_P(ValueLaw, KeyOrderDoesNotMatter) {
  for_each_seed(4000, [&](uint64_t seed) {
    Case a = make(open_spec(seed)), b = make(open_spec(seed));
    const Spec& s = a.spec;
    Rng rng(seed);
    std::vector<int64_t> order(s.seq_k);
    std::iota(order.begin(), order.end(), 0);
    for (int64_t i = s.seq_k - 1; i > 0; --i) std::swap(order[i], order[rng.integer(0, i)]);
    const auto to = [&](int64_t batch, int64_t n) { return batch * s.seq_k + order[n]; };
    const int64_t width = s.kv_heads * s.head_dim;
    copy_rows(a.values.k1, b.values.k1, s.batch, s.seq_k, width, to);
    copy_rows(a.values.k2, b.values.k2, s.batch, s.seq_k, width, to);
    copy_rows(a.values.v, b.values.v, s.batch, s.seq_k, s.kv_heads * s.value_dim, to);
    b.store();
    expect_same(a, out(b), out(a));
  });
}

TEST_P(ValueLaw, OutputIsLinearInValues) {
  for_each_seed(5000, [&](uint64_t seed) {
    Spec spec = open_spec(seed);
    spec.norm = spec.norm_weight = false;
    Case a = make(spec), b = make(spec), sum = make(spec);
    Rng rng(seed);
    for (size_t i = 0; i < a.values.v.size(); ++i) {
      // All positive, so that the rounding bound of the sum covers both parts. Multiples of 1/8, so
      // that the sum is exact in every type.
      a.values.v[i] = static_cast<double>(rng.integer(1, 16)) / 8;
      b.values.v[i] = static_cast<double>(rng.integer(1, 16)) / 8;
      sum.values.v[i] = a.values.v[i] + b.values.v[i];
    }
    a.store();
    b.store();
    sum.store();
    std::vector<double> want = out(a);
    const std::vector<double> other = out(b);
    for (size_t i = 0; i < want.size(); ++i) want[i] += other[i];
    expect_same(sum, out(sum), want);
  });
}

TEST_P(ValueLaw, HeadsAreIndependent) {
  for_each_seed(6000, [&](uint64_t seed) {
    Case c = make(open_spec(seed));
    const std::vector<double> before = out(c);
    const int64_t changed = c.spec.heads - 1, width = c.spec.head_dim;
    for (int64_t row = 0; row < c.rows_q(); ++row) {
      for (int64_t d = 0; d < width; ++d) {
        c.values.q1[(row * c.spec.heads + changed) * width + d] += 1.0;
      }
    }
    c.store();
    std::vector<double> after = out(c);
    for (int64_t row = 0; row < c.rows_q(); ++row) {
      const int64_t at = (row * c.spec.heads + changed) * c.spec.value_dim;
      std::copy_n(&before[at], c.spec.value_dim, &after[at]);
    }
    expect_same_bits(c, after, before);
  });
}

TEST_P(ValueLaw, GroupedHeadsEqualRepeatedKeys) {
  for_each_seed(7000, [&](uint64_t seed) {
    Spec spec = open_spec(seed);
    spec.causal = seed % 2 == 0;
    Case grouped = make(spec);
    spec.kv_heads = spec.heads;
    Case repeated = make(spec);
    repeated.values.q1 = grouped.values.q1;
    repeated.values.q2 = grouped.values.q2;
    repeated.values.lambda = grouped.values.lambda;
    repeated.values.norm_weight = grouped.values.norm_weight;
    const auto repeat = [&](const std::vector<double>& from, std::vector<double>& to,
                            int64_t width) {
      for (int64_t i = 0; i < static_cast<int64_t>(to.size()); ++i) {
        const int64_t row = i / (width * spec.heads), h = i / width % spec.heads;
        to[i] = from[(row * grouped.spec.kv_heads + grouped.kv_head(h)) * width + i % width];
      }
    };
    repeat(grouped.values.k1, repeated.values.k1, spec.head_dim);
    repeat(grouped.values.k2, repeated.values.k2, spec.head_dim);
    repeat(grouped.values.v, repeated.values.v, spec.value_dim);
    repeated.store();
    expect_same(grouped, out(grouped), out(repeated));
  });
}

TEST_P(ValueLaw, SharedKeysEqualCopiedKeys) {
  for_each_seed(8000, [&](uint64_t seed) {
    Spec spec = open_spec(seed);
    Case copied = make(spec);
    spec.shared_k = true;
    Case shared = make(spec);
    copied.values.k2 = copied.values.k1;
    copied.store();
    expect_same(shared, out(shared), out(copied));
  });
}

TEST_P(ValueLaw, HalfTheScaleIsHalfTheQuery) {  // the temperature variant
  for_each_seed(9000, [&](uint64_t seed) {
    Spec spec = open_spec(seed);
    spec.shared_k = true;
    spec.scale2 = spec.scale;
    Case halved = make(spec);
    halved.values.q2 = halved.values.q1;
    for (double& x : halved.values.q2) x /= 2;  // exact
    halved.store();
    spec.shared_q = true;
    spec.scale2 = spec.scale / 2;
    Case scaled_down = make(spec);
    expect_same(halved, out(scaled_down), out(halved));
  });
}

TEST_P(ValueLaw, LambdaShapesAgree) {
  for_each_seed(10000, [&](uint64_t seed) {
    Spec spec = open_spec(seed);
    spec.lambda_low = spec.lambda_high = 0.7;
    spec.lambda_shape = LambdaShape::kScalar;
    const Case scalar = make(spec);
    const std::vector<double> want = out(scalar);
    for (const LambdaShape shape : {LambdaShape::kPerHead, LambdaShape::kPerToken}) {
      spec.lambda_shape = shape;
      expect_same(scalar, out(make(spec)), want);
    }
  });
}

TEST_P(ValueLaw, NormIgnoresTheSizeOfValues) {
  for_each_seed(11000, [&](uint64_t seed) {
    Spec spec = open_spec(seed);
    spec.norm = true;
    Case c = make(spec);
    spec.norm_eps *= 16;
    Case larger = make(spec);
    for (double& x : larger.values.v) x *= 4;  // exact
    larger.store();
    expect_same(c, out(larger), out(c));
  });
}

/// Laws that hold to the last bit in float32 and float64.
class ExactValueLaw : public ValueLaw {};

std::vector<Target> exact_targets() {
  std::vector<Target> list;
  for (const Target& target : targets()) {
    if (target.dtype == Dtype::kFloat32 || target.dtype == Dtype::kFloat64) list.push_back(target);
  }
  return list;
}

// p = 1 whatever q and k are. 16-bit kernels on a GPU have the rounding error of dO instead.
TEST_P(ExactValueLaw, RowsThatSeeOneKeyDoNotMoveQueriesAndKeys) {
  for_each_seed(12000, [&](uint64_t seed) {
    Spec spec = causal_spec(seed);
    spec.norm = seed % 2 == 0;
    const bool masked = seed % 3 == 0, windowed = seed % 3 == 1;  // else only row 0 sees one key
    if (windowed) spec.window = Window::last(1);
    if (masked) {
      spec.causal = false;
      spec.mask = seed % 4 < 2 ? MaskKind::kBoolean : MaskKind::kAdditive;
      spec.mask_row = spec.mask_column = true;
      spec.mask_batch = spec.mask_head = false;
    }
    Case c = make(spec);
    for (int64_t m = 0; masked && m < spec.seq_q; ++m) {
      for (int64_t n = 0; n < spec.seq_k; ++n) {
        c.values.mask[c.mask_index(0, 0, m, n)] = n == 7 * m % spec.seq_k ? 0.0 : -INFINITY;
      }
    }
    c.store();
    const BackwardResult got = run_backward(backend(), c);
    const int64_t row = spec.heads * spec.head_dim;
    for (const auto* dq : {&got.dq1, &got.dq2}) {
      for (int64_t i = 0; i < static_cast<int64_t>(dq->size()); ++i) {
        if (!masked && !windowed && i / row % spec.seq_q != 0) continue;
        ASSERT_EQ((*dq)[i], 0.0) << "row " << i / row << "\n  " << c.describe();
      }
    }
    if (!masked && !windowed) return;
    for (const auto* dk : {&got.dk1, &got.dk2}) {
      for (const double x : *dk) ASSERT_EQ(x, 0.0) << c.describe();
    }
    for (const double x : got.dmask) ASSERT_EQ(x, 0.0) << c.describe();
  });
}

INSTANTIATE_TEST_SUITE_P(Kernels, ValueLaw, ::testing::ValuesIn(targets()), target_name);
INSTANTIATE_TEST_SUITE_P(Kernels, ExactValueLaw, ::testing::ValuesIn(exact_targets()), target_name);

}  // namespace
}  // namespace diffattn::testing
