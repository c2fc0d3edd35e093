// SPDX-License-Identifier: Apache-2.0
//
// Laws about positions: visibility under causal masks, windows, padding, packing, chunked prefill
// and KV caches, and the independence of batch entries.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/laws.h"

namespace diffattn::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class SequenceLaw : public Law {
 protected:
  /// Copies rows of q, dout, k, v and a lambda per token into `part`, which has the same heads. The
  /// functions return the target row, or -1 to skip the row.
  template <class ToQuery, class ToKey>
  static void copy_case(const Case& whole, Case& part, ToQuery&& to_query, ToKey&& to_key) {
    const Spec& s = whole.spec;
    const auto query = [&](std::vector<double> Values::*x, int64_t width) {
      copy_rows(whole.values.*x, part.values.*x, s.batch, s.seq_q, s.heads * width, to_query);
    };
    const auto key = [&](std::vector<double> Values::*x, int64_t width) {
      copy_rows(whole.values.*x, part.values.*x, s.batch, s.seq_k, s.kv_heads * width, to_key);
    };
    query(&Values::q1, s.head_dim);
    query(&Values::q2, s.head_dim);
    query(&Values::dout, s.value_dim);
    key(&Values::k1, s.head_dim);
    key(&Values::k2, s.head_dim);
    key(&Values::v, s.value_dim);
    if (s.lambda_shape == LambdaShape::kPerToken) {
      query(&Values::lambda, 1);
    } else {
      part.values.lambda = whole.values.lambda;
    }
    part.values.norm_weight = whole.values.norm_weight;
  }

  static void fill_rows(std::vector<double>& values, int64_t first, int64_t count, int64_t width,
                        double value) {
    std::fill_n(values.begin() + first * width, count * width, value);
  }

  /// Sets keys and values of these rows to NaN, as padding that no row may read.
  static void poison_keys(Case& c, int64_t first, int64_t count) {
    fill_rows(c.values.k1, first, count, c.spec.kv_heads * c.spec.head_dim, kNan);
    fill_rows(c.values.k2, first, count, c.spec.kv_heads * c.spec.head_dim, kNan);
    fill_rows(c.values.v, first, count, c.spec.kv_heads * c.spec.value_dim, kNan);
  }
};

TEST_P(SequenceLaw, BatchEntriesDoNotKnowOfEachOther) {  // bitwise, forward and backward
  for_each_seed(1000, [&](uint64_t seed) {
    Spec spec = open_spec(seed);
    spec.batch = 3;
    spec.causal = seed % 2 == 0;
    spec.key_lengths = seed % 3 == 0;
    if (spec.lambda_shape != LambdaShape::kPerToken) spec.lambda_shape = LambdaShape::kPerHead;
    Case whole = make(spec);
    const std::vector<double> want = out(whole);
    const BackwardResult gradients = run_backward(backend(), whole);
    for (int64_t b = 0; b < 3; ++b) {
      spec.batch = 1;
      Case part = make(spec);
      copy_case(
          whole, part, [&](int64_t i, int64_t m) { return i == b ? m : -1; },
          [&](int64_t i, int64_t n) { return i == b ? n : -1; });
      if (spec.key_lengths) part.values.key_lengths = {whole.values.key_lengths[b]};
      part.store();
      const auto expect_part = [&](const std::vector<double>& got, const std::vector<double>& all) {
        const auto first = all.begin() + b * static_cast<int64_t>(got.size());
        expect_same_bits(part, got, {first, first + static_cast<int64_t>(got.size())});
      };
      const BackwardResult own = run_backward(backend(), part);
      expect_part(out(part), want);
      expect_part(own.dq1, gradients.dq1);
      expect_part(own.dq2, gradients.dq2);
      expect_part(own.dk1, gradients.dk1);
      expect_part(own.dk2, gradients.dk2);
      expect_part(own.dv, gradients.dv);
      if (spec.lambda_shape == LambdaShape::kPerToken) expect_part(own.dlambda, gradients.dlambda);
    }
  });
}

TEST_P(SequenceLaw, ChunksOfQueriesEqualTheWhole) {
  for_each_seed(2000, [&](uint64_t seed) {
    Spec spec = open_spec(seed);
    spec.causal = true;
    spec.seq_k = spec.seq_q + static_cast<int64_t>(seed % 3);
    if (seed % 4 == 0) spec.window = Window::last(1 + static_cast<int64_t>(seed % 7));
    const Case whole = make(spec);
    const int64_t width = spec.heads * spec.value_dim;
    std::vector<double> got(whole.rows_q() * width);
    Rng rng(seed);
    for (int64_t begin = 0; begin < whole.spec.seq_q;) {
      const int64_t end = rng.integer(begin + 1, whole.spec.seq_q);
      spec.seq_q = end - begin;
      spec.key_lengths = spec.align_to_key_lengths = true;
      Case chunk = make(spec);
      copy_case(
          whole, chunk,
          [&](int64_t b, int64_t m) {
            return m >= begin && m < end ? b * spec.seq_q + m - begin : -1;
          },
          [&](int64_t b, int64_t n) { return b * spec.seq_k + n; });
      chunk.values.key_lengths.assign(spec.batch,
                                      static_cast<int32_t>(spec.seq_k - (whole.spec.seq_q - end)));
      chunk.store();
      const std::vector<double> part = out(chunk);
      for (int64_t row = 0; row < chunk.rows_q(); ++row) {
        const int64_t b = row / spec.seq_q, m = row % spec.seq_q;
        std::copy_n(&part[row * width], width, &got[(b * whole.spec.seq_q + begin + m) * width]);
      }
      begin = end;
    }
    expect_same(whole, got, out(whole));
  });
}

TEST_P(SequenceLaw, DecodingFromACacheEqualsPrefill) {
  for_each_seed(3000, [&](uint64_t seed) {
    Spec spec = causal_spec(seed);
    spec.batch = 1;
    const Case whole = make(spec);
    const int64_t tokens = spec.seq_q, width = spec.heads * spec.value_dim;
    spec.seq_q = 1;
    spec.seq_k = tokens + 3;  // a cache with room to spare
    spec.key_lengths = spec.align_to_key_lengths = true;
    std::vector<double> got(tokens * width);
    for (int64_t t = 0; t < tokens; ++t) {
      Case step = make(spec);
      copy_case(
          whole, step, [&](int64_t, int64_t m) { return m == t ? 0 : -1; },
          [&](int64_t, int64_t n) { return n; });
      poison_keys(step, t + 1, spec.seq_k - t - 1);
      step.values.key_lengths = {static_cast<int32_t>(t + 1)};
      step.store();
      const std::vector<double> row = out(step);
      std::copy_n(row.begin(), width, &got[t * width]);
    }
    expect_same(whole, got, out(whole));
  });
}

TEST_P(SequenceLaw, RightPaddingIsNotSeen) {
  for_each_seed(4000, [&](uint64_t seed) {
    Spec spec = open_spec(seed);
    const Case plain = make(spec);
    const int64_t padding = 1 + static_cast<int64_t>(seed % 5);
    spec.seq_k += padding;
    spec.key_lengths = true;
    Case padded = make(spec);
    copy_case(
        plain, padded, [&](int64_t b, int64_t m) { return b * spec.seq_q + m; },
        [&](int64_t b, int64_t n) { return b * spec.seq_k + n; });
    padded.values.key_lengths.assign(spec.batch, static_cast<int32_t>(plain.spec.seq_k));
    for (int64_t b = 0; b < spec.batch; ++b) {
      poison_keys(padded, b * spec.seq_k + plain.spec.seq_k, padding);
    }
    padded.store();
    expect_same(plain, out(padded), out(plain));
  });
}

TEST_P(SequenceLaw, LeftPaddingIsNotSeen) {
  for_each_seed(5000, [&](uint64_t seed) {
    Spec spec = causal_spec(seed);
    if (seed % 3 == 0) spec.window = Window::last(1 + static_cast<int64_t>(seed % 5));
    const Case plain = make(spec);
    const int64_t padding = 1 + static_cast<int64_t>(seed % 5);
    spec.seq_k += padding;  // query rows are aligned to the last key, so they see the same keys
    spec.key_starts = true;
    Case padded = make(spec);
    copy_case(
        plain, padded, [&](int64_t b, int64_t m) { return b * spec.seq_q + m; },
        [&](int64_t b, int64_t n) { return b * spec.seq_k + padding + n; });
    padded.values.key_starts.assign(spec.batch, static_cast<int32_t>(padding));
    for (int64_t b = 0; b < spec.batch; ++b) poison_keys(padded, b * spec.seq_k, padding);
    padded.store();
    expect_same(plain, out(padded), out(plain));
  });
}

TEST_P(SequenceLaw, PackedSequencesEqualSeparateRuns) {
  for_each_seed(6000, [&](uint64_t seed) {
    Spec spec = open_spec(seed);
    spec.varlen = true;
    spec.batch = 3;
    spec.causal = seed % 2 == 0;
    const Case packed = make(spec);
    const Spec& s = packed.spec;
    std::vector<double> got;
    for (int64_t b = 0; b < s.batch; ++b) {
      Spec single = s;
      single.varlen = false;
      single.batch = 1;
      single.seq_q = packed.len_q(b);
      single.seq_k = packed.len_k(b);
      Case part = make(single);
      const auto take = [&](std::vector<double> Values::*x, int64_t first, int64_t width) {
        const auto from = (packed.values.*x).begin() + first * width;
        std::copy_n(from, (part.values.*x).size(), (part.values.*x).begin());
      };
      const int64_t q = packed.row_q(b, 0), k = packed.row_k(b, 0);
      take(&Values::q1, q, s.heads * s.head_dim);
      take(&Values::q2, q, s.heads * s.head_dim);
      take(&Values::k1, k, s.kv_heads * s.head_dim);
      take(&Values::k2, k, s.kv_heads * s.head_dim);
      take(&Values::v, k, s.kv_heads * s.value_dim);
      take(&Values::lambda, s.lambda_shape == LambdaShape::kPerToken ? q : 0, s.heads);
      part.values.norm_weight = packed.values.norm_weight;
      part.store();
      const std::vector<double> rows = out(part);
      got.insert(got.end(), rows.begin(), rows.end());
    }
    expect_same(packed, got, out(packed));
  });
}

TEST_P(SequenceLaw, WindowOfAllColumnsIsCausal) {
  for_each_seed(7000, [&](uint64_t seed) {
    Spec spec = causal_spec(seed);
    const Case causal = make(spec);
    spec.causal = false;
    spec.window = Window::last(spec.seq_k + static_cast<int64_t>(seed % 2));
    expect_same(causal, out(make(spec)), out(causal));
  });
}

TEST_P(SequenceLaw, BoundsBeyondEveryColumnHideNothing) {
  for_each_seed(7200, [&](uint64_t seed) {
    Spec spec = causal_spec(seed);
    spec.causal = seed % 2 == 0;
    const Case open = make(spec);
    // Row 0 has seq_q - 1 columns after its own, and the last row seq_k - 1 before it.
    spec.window = {spec.seq_k - 1, spec.seq_q - 1};
    expect_same(open, out(make(spec)), out(open));
  });
}

/// In a sequence read backwards, the columns after a row's own come before it.
TEST_P(SequenceLaw, ReversalSwapsTheBounds) {
  for_each_seed(7300, [&](uint64_t seed) {
    Spec spec = causal_spec(seed);
    spec.causal = false;
    spec.seq_q = spec.seq_k;
    spec.lambda_shape = LambdaShape::kPerHead;
    spec.window = {static_cast<int64_t>(seed % 5), static_cast<int64_t>(seed % 7)};
    const Case forwards = make(spec);
    std::swap(spec.window.left, spec.window.right);
    Case backwards = make(spec);
    const auto reversed = [&](int64_t b, int64_t l) { return (b + 1) * spec.seq_q - 1 - l; };
    copy_case(forwards, backwards, reversed, reversed);
    backwards.store();
    const std::vector<double> got = out(backwards);
    std::vector<double> want(got.size());
    copy_rows(out(forwards), want, spec.batch, spec.seq_q, spec.heads * spec.value_dim, reversed);
    expect_same(backwards, got, want);
  });
}

TEST_P(SequenceLaw, WindowOfOneIsTheTokenItself) {
  for_each_seed(7500, [&](uint64_t seed) {
    Spec spec = causal_spec(seed);
    spec.window = Window::last(1);
    spec.norm = spec.norm_weight = false;
    const Case c = make(spec);
    std::vector<double> want;
    for (int64_t row = 0; row < c.rows_q(); ++row) {
      for (int64_t h = 0; h < spec.heads; ++h) {
        const double lambda =
            c.values.lambda[c.lambda_index(row / spec.seq_q, row % spec.seq_q, h)];
        for (int64_t d = 0; d < spec.value_dim; ++d) {
          const double v = c.values.v[(row * spec.kv_heads + c.kv_head(h)) * spec.value_dim + d];
          want.push_back(spec.out_scale * (1.0 - lambda) * v);
        }
      }
    }
    expect_same(c, out(c), want);
  });
}

TEST_P(SequenceLaw, CausalFlagEqualsCausalMask) {
  for_each_seed(8000, [&](uint64_t seed) {
    Spec spec = causal_spec(seed);
    const Case causal = make(spec);
    spec.causal = false;
    spec.mask = seed % 2 == 0 ? MaskKind::kBoolean : MaskKind::kAdditive;
    spec.mask_batch = spec.mask_head = false;
    spec.mask_row = spec.mask_column = true;
    spec.mask_transposed = seed % 3 == 0;
    Case masked = make(spec);
    for (int64_t m = 0; m < spec.seq_q; ++m) {
      for (int64_t n = 0; n < spec.seq_k; ++n) {
        masked.values.mask[masked.mask_index(0, 0, m, n)] =
            n <= m ? 0.0 : -std::numeric_limits<double>::infinity();
      }
    }
    masked.store();
    expect_same(causal, out(masked), out(causal));
  });
}

TEST_P(SequenceLaw, TheFutureDoesNotChangeThePast) {  // bitwise
  for_each_seed(9000, [&](uint64_t seed) {
    Case c = make(causal_spec(seed));
    const Spec& s = c.spec;
    const std::vector<double> before = out(c);
    const int64_t t = static_cast<int64_t>(seed) % s.seq_q;
    const int64_t row = (s.batch - 1) * s.seq_q + t;
    fill_rows(c.values.q1, row, 1, s.heads * s.head_dim, 2.5);
    fill_rows(c.values.k1, row, 1, s.kv_heads * s.head_dim, -3.0);
    fill_rows(c.values.k2, row, 1, s.kv_heads * s.head_dim, 1.5);
    fill_rows(c.values.v, row, 1, s.kv_heads * s.value_dim, 100.0);
    c.store();
    std::vector<double> after = out(c);
    const int64_t width = s.heads * s.value_dim;
    if (!s.norm) {
      EXPECT_FALSE(same_bits(after, before, c.query_dims(s.value_dim)));
    }
    std::copy(before.begin() + row * width, before.end(), after.begin() + row * width);
    expect_same_bits(c, after, before);
  });
}

TEST_P(SequenceLaw, TokenZeroSeesOnlyItself) {
  // p1 = p2 = 1 there, so the output is the epilogue of (1 - lambda) v0 for any q and k.
  for_each_seed(10000, [&](uint64_t seed) {
    Spec spec = causal_spec(seed);
    spec.norm = true;
    const Case c = make(spec);
    std::vector<double> got = out(c), want = got;
    for (int64_t b = 0; b < spec.batch; ++b) {
      for (int64_t h = 0; h < spec.heads; ++h) {
        const double share = 1.0 - c.values.lambda[c.lambda_index(b, 0, h)];
        const double* v =
            &c.values.v[(c.row_k(b, 0) * spec.kv_heads + c.kv_head(h)) * spec.value_dim];
        double squares = 0.0;
        for (int64_t d = 0; d < spec.value_dim; ++d) squares += share * share * v[d] * v[d];
        const double rms = std::sqrt(squares / static_cast<double>(spec.value_dim) + spec.norm_eps);
        for (int64_t d = 0; d < spec.value_dim; ++d) {
          const double weight = spec.norm_weight ? c.values.norm_weight[d] : 1.0;
          want[(c.row_q(b, 0) * spec.heads + h) * spec.value_dim + d] =
              spec.out_scale * weight * share * v[d] / rms;
        }
      }
    }
    expect_same(c, got, want);
  });
}

INSTANTIATE_TEST_SUITE_P(Kernels, SequenceLaw, ::testing::ValuesIn(targets()), target_name);

}  // namespace
}  // namespace diffattn::testing
