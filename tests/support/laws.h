// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/check.h"
#include "tests/support/compare.h"

namespace diffattn::testing {

inline constexpr int64_t kCasesPerLaw = 50;  // per element type

/// Returns a spec with random sizes, lambda, scales, norm and layouts. Every column is visible, and
/// no tensors share memory, so that tests can change single values.
inline Spec open_spec(uint64_t seed) {
  Spec spec = random_spec(seed, {.seq = 20, .head_dim = 24, .value_dim = 24, .work = 100000});
  Rng rng(seed ^ 0x1a35);
  spec.causal = spec.key_starts = spec.key_lengths = spec.align_to_key_lengths = false;
  spec.varlen = spec.shared_k = spec.shared_q = false;
  spec.window = {};
  spec.mask = MaskKind::kNone;
  for (Layout* layout : {&spec.query_layout, &spec.key_layout, &spec.value_layout}) {
    *layout = rng.pick(
        {Layout::kBmhd, Layout::kBhmd, Layout::kSlice, Layout::kGapped, Layout::kReversed});
  }
  return spec;
}

/// Returns a causal spec with as many rows as columns.
inline Spec causal_spec(uint64_t seed) {
  Spec spec = open_spec(seed);
  spec.causal = true;
  spec.seq_k = spec.seq_q;
  return spec;
}

/// Copies rows of a dense tensor into one with other lengths: row l of batch entry b goes to row
/// to(b, l), or nowhere if that is negative. `width`: elements of a row, over all heads.
template <class To>
void copy_rows(const std::vector<double>& from, std::vector<double>& target, int64_t batch,
               int64_t seq, int64_t width, To&& to) {
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t l = 0; l < seq; ++l) {
      const int64_t row = to(b, l);
      if (row < 0) continue;
      for (int64_t i = 0; i < width; ++i) target[row * width + i] = from[(b * seq + l) * width + i];
    }
  }
}

class Law : public ::testing::TestWithParam<Target> {
 protected:
  const Backend& backend() const { return *GetParam().backend; }

  /// Calls law(seed) for every case and stops at the first failure.
  template <class F>
  void for_each_seed(uint64_t first, F&& law) {
    for (int64_t i = 0; i < scaled(kCasesPerLaw); ++i) {
      law(first + static_cast<uint64_t>(i));
      if (HasFailure()) return;
    }
  }

  Case make(const Spec& spec) const { return Case(spec, GetParam().dtype); }
  std::vector<double> out(const Case& c) const { return run_forward(backend(), c).out; }

  /// Expects two results of case c to be equal within the rounding errors of both.
  static void expect_same(const Case& c, const std::vector<double>& got,
                          const std::vector<double>& want) {
    const std::vector<double> bounds = out_tolerance(c);
    ASSERT_EQ(got.size(), want.size());
    const Comparison result = compare(got, want, [&](int64_t i) { return bounds[i]; });
    EXPECT_TRUE(result.ok()) << describe(result, c.query_dims(c.spec.value_dim)) << "\n  "
                             << c.describe();
  }

  static void expect_same_bits(const Case& c, const std::vector<double>& got,
                               const std::vector<double>& want) {
    EXPECT_TRUE(same_bits(got, want, c.query_dims(c.spec.value_dim))) << c.describe();
  }
};

}  // namespace diffattn::testing
