// SPDX-License-Identifier: Apache-2.0
//
// Row statistics and downsampled maps against the oracle's whole maps. gradcheck_test.cpp checks
// the gradients of the statistics in float64; here other types are checked against the float64
// reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "diffattn/kernels/reference.h"
#include "tests/support/compare.h"
#include "tests/support/oracle.h"
#include "tests/support/run.h"
#include "tests/support/tolerance.h"

namespace diffattn::testing {
namespace {

class StatsMap : public ::testing::TestWithParam<Target> {
 protected:
  const Backend& backend() const { return *GetParam().backend; }

  /// Returns the largest allowed error of an entry of p1, p2 or A.
  double entry_tolerance(const Oracle<double>& oracle) const {
    const auto dim = static_cast<double>(oracle.s.head_dim);
    return kStatRoundings * unit_roundoff(accumulator_of(GetParam().dtype)) *
           (1.0 + oracle.score_magnitude + kSumRoundingsPerTerm * dim);
  }
};

/// Returns a mostly small spec; one in 20 has several tiles, key blocks and blocks of rows.
Spec stats_spec(uint64_t seed) {
  const bool large = seed % 20 == 19;
  Spec spec = random_spec(
      seed,
      {.seq = large ? 500 : 24, .head_dim = 16, .value_dim = 4, .work = large ? 2000000 : 60000});
  spec.logit_spread = seed % 2 == 0 ? 1.0 : 4.0;  // flat maps and peaked ones: focus, coverage
  if (seed % 3 == 0) spec.lambda_low = -1.0;
  return spec;
}

double frobenius(const std::vector<double>& x) {
  double sum = 0.0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

/// The statistics of one row, computed from its visible entries.
struct RowStats {
  double value[kStatCount] = {};
  double slack[kStatCount] = {};  // extra tolerance, such as for entries close to a threshold
};

RowStats oracle_stats(const Oracle<double>& oracle, int64_t b, int64_t h, int64_t m,
                      double threshold, double tolerance) {
  std::vector<double> a;
  RowStats row;
  const double lambda = oracle.lambda(b, m, h);
  for (int64_t n = 0; n < oracle.c.len_k(b); ++n) {
    if (!oracle.visible(b, h, m, n)) continue;
    const int64_t i = oracle.entry(b, h, m, n);
    a.push_back(oracle.difference(b, h, m, n));
    row.value[kStatOverlap] += std::min(oracle.p1[i], oracle.p2[i]);
    row.value[kStatCancelled] += lambda > 0 ? std::min(oracle.p1[i], lambda * oracle.p2[i]) : 0.0;
  }
  if (a.empty()) return row;
  const auto count = static_cast<double>(a.size());
  const auto share = [&](Stat stat, double limit, auto&& holds, auto&& size) {
    for (const double x : a) {
      row.value[stat] += holds(x) ? 1 / count : 0.0;
      row.slack[stat] += std::abs(size(x) - limit) < tolerance ? 1 / count : 0.0;
    }
  };
  const auto magnitude = [](double x) { return std::abs(x); };
  const auto itself = [](double x) { return x; };
  share(
      kStatSparse, threshold, [&](double x) { return std::abs(x) < threshold; }, magnitude);
  share(
      kStatFocus, 0.5, [](double x) { return std::abs(x) > 0.5; }, magnitude);
  share(
      kStatCoverage, 0.1, [](double x) { return x > 0.1; }, itself);
  for (const double x : a) {
    row.value[kStatAbsSum] += std::abs(x);
    row.value[kStatSquareSum] += x * x;
    row.value[kStatNegativeMass] += x < 0 ? -x : 0.0;
  }
  for (const double x : a) {
    const double p = std::abs(x) / row.value[kStatAbsSum];
    if (p > 0) row.value[kStatEntropy] -= p * std::log(p);
  }
  row.value[kStatVisible] = count;
  row.value[kStatMax] = *std::max_element(a.begin(), a.end());
  row.value[kStatSinkMass] = a.front();
  // -p log p has a steep slope near 0, and p is divided by a sum that may be small.
  row.slack[kStatEntropy] = 40 * tolerance * count / std::max(row.value[kStatAbsSum], 1e-3);
  return row;
}

TEST_P(StatsMap, StatisticsOfEveryRow) {
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(scaled(150)); ++seed) {
    const Case c(stats_spec(seed), GetParam().dtype);
    const Oracle<double> oracle(c);
    const double threshold = seed % 2 == 0 ? 1e-3 : 0.03, tolerance = entry_tolerance(oracle);
    const std::vector<double> got = run_stats(backend(), c, threshold);
    oracle.for_each_row([&](int64_t b, int64_t h, int64_t m) {
      const RowStats want = oracle_stats(oracle, b, h, m, threshold, tolerance);
      const double columns = want.value[kStatVisible];
      for (int stat = 0; stat < kStatCount; ++stat) {
        const bool is_count = stat == kStatVisible;
        const double bound = is_count ? 0.0 : want.slack[stat] + tolerance * (1 + columns);
        const double have = got[(c.row_q(b, m) * c.spec.heads + h) * kStatCount + stat];
        ASSERT_NEAR(have, want.value[stat], bound)
            << "statistic " << stat << " of entry " << b << ", row " << m << ", head " << h
            << "\n  " << c.describe();
      }
    });
    if (HasFatalFailure()) return;
  }
}

TEST_P(StatsMap, GradientsOfStatistics) {
  // The truth is the float64 reference on the same numbers; gradcheck_test.cpp checks it.
  const Backend& truth = cpu_backends().back();
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(scaled(60)); ++seed) {
    Spec spec = stats_spec(seed + 600);
    spec.mask_dtype = Dtype::kFloat32;
    Case c(spec, GetParam().dtype), wide(spec, Dtype::kFloat64);
    wide.values = c.values;
    wide.store();
    Rng rng(seed);
    std::vector<double> dstats(c.rows_q() * spec.heads * kStatCount);
    for (double& x : dstats) x = rounded(Dtype::kBFloat16, rng.normal());
    for (size_t i = 0; i < dstats.size(); ++i) {
      // The slope of the entropy is log |A|, unbounded at 0; gradcheck_test.cpp covers it.
      if (i % kStatCount == kStatEntropy) dstats[i] = 0.0;
    }
    const BackwardResult got = run_stats_backward(backend(), c, dstats);
    const BackwardResult want = run_stats_backward(truth, wide, dstats);
    double inputs = 1.0;
    for (const auto* x : {&c.values.q1, &c.values.q2, &c.values.k1, &c.values.k2}) {
      inputs = std::max(inputs, frobenius(*x));
    }
    const double cancelled =
        kStatGradientRoundings * unit_roundoff(c.accumulator) * frobenius(dstats) * inputs;
    for (const NamedGradient& gradient : kGradients) {
      const std::vector<double>& values = want.*gradient.values;
      double norm = 0.0, error = 0.0;
      ASSERT_EQ((got.*gradient.values).size(), values.size()) << gradient.name;
      for (size_t i = 0; i < values.size(); ++i) {
        norm += values[i] * values[i];
        error += std::pow((got.*gradient.values)[i] - values[i], 2);
      }
      const double bound =
          std::max(8 * unit_roundoff(c.dtype), 1e-5 * (c.dtype != Dtype::kFloat64));
      ASSERT_LE(std::sqrt(error), bound * std::sqrt(norm) + std::max(cancelled, 1e-6))
          << gradient.name << "; " << c.describe();
    }
  }
}

TEST_P(StatsMap, CellsShowTheirExtremes) {
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(scaled(120)); ++seed) {
    const Case c(stats_spec(seed + 2000), GetParam().dtype);
    const Spec& s = c.spec;
    if (s.seq_q == 0 || s.seq_k == 0) continue;
    const Oracle<double> oracle(c);
    const double tolerance = entry_tolerance(oracle);
    Rng rng(seed);
    Tile tile{};
    tile.row_begin = rng.chance(0.5) ? 0 : rng.integer(0, s.seq_q - 1);
    tile.row_end = rng.integer(tile.row_begin + 1, s.seq_q);
    tile.col_begin = rng.chance(0.5) ? 0 : rng.integer(0, s.seq_k - 1);
    tile.col_end = rng.integer(tile.col_begin + 1, s.seq_k);
    const int64_t height = tile.row_end - tile.row_begin, breadth = tile.col_end - tile.col_begin;
    tile.rows = rng.chance(0.4) ? height : rng.integer(1, height);
    tile.cols = rng.chance(0.4) ? breadth : rng.integer(1, breadth);
    const std::vector<double> got = run_map(backend(), c, tile);
    for (int64_t head = 0; head < s.batch * s.heads; ++head) {
      const int64_t b = head / s.heads, h = head % s.heads;
      for (int64_t cell = 0; cell < 3 * tile.rows * tile.cols; ++cell) {
        const int64_t which = cell / (tile.rows * tile.cols), r = cell / tile.cols % tile.rows;
        const double have = got[head * 3 * tile.rows * tile.cols + cell];
        double largest = 0.0, nearest = std::abs(have);  // an empty cell is 0
        for (int64_t m = tile.row_begin; m < std::min(tile.row_end, c.len_q(b)); ++m) {
          if ((m - tile.row_begin) * tile.rows / height != r) continue;
          for (int64_t n = tile.col_begin; n < std::min(tile.col_end, c.len_k(b)); ++n) {
            if ((n - tile.col_begin) * tile.cols / breadth != cell % tile.cols) continue;
            const int64_t i = oracle.entry(b, h, m, n);
            const double entry = which == 0   ? oracle.p1[i]
                                 : which == 1 ? oracle.p2[i]
                                              : oracle.difference(b, h, m, n);
            largest = std::max(largest, std::abs(entry));
            nearest = std::min(nearest, std::abs(have - entry));
          }
        }
        ASSERT_NEAR(std::abs(have), largest, tolerance) << "cell " << cell << "; " << c.describe();
        ASSERT_LE(nearest, tolerance)
            << "cell " << cell << " shows " << have << "; " << c.describe();
      }
    }
  }
}

TEST_P(StatsMap, ALoneNegativeEntrySurvivesDownsampling) {
  // Only map 2 prefers column 3: A is about -lambda there, and small and positive elsewhere.
  Spec spec;
  spec.seq_q = 1;
  spec.seq_k = 64;
  spec.scale = spec.scale2 = 1.0;
  spec.lambda_low = spec.lambda_high = 0.9;
  Case c(spec, GetParam().dtype);
  for (auto* x : {&c.values.q1, &c.values.q2, &c.values.k1, &c.values.k2}) {
    std::fill(x->begin(), x->end(), 0.0);
  }
  c.values.q2[0] = 4.0;
  c.values.k2[3 * spec.head_dim] = 4.0;
  c.store();
  const std::vector<double> map = run_map(backend(), c, {0, 1, 0, 64, 1, 4});
  EXPECT_NEAR(map[8], 1.0 / 64 - 0.9, 1e-4);
  EXPECT_NEAR(map[9], 1.0 / 64, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Kernels, StatsMap, ::testing::ValuesIn(targets()), target_name);

}  // namespace
}  // namespace diffattn::testing
