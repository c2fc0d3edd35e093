// SPDX-License-Identifier: Apache-2.0
//
// Statistics of the rows of A = p1 - lambda p2 over the columns each row sees, and their gradients.
// `enum Stat` in params.h and "Statistics" in docs/algorithm.md define them.
//
//   forward:   maps of row m [N] by steps (1)-(3), then stats [kStatCount]
//   backward:  dstats -> dA -> dp1, dp2, dlambda, then steps (8) (9) in input_gradients.h
//
// All sums are in double; results are rounded once, when they are stored.

#include <algorithm>
#include <array>

#include "diffattn/kernels/backend.h"
#include "diffattn/kernels/reference.h"
#include "kernels/reference/input_gradients.h"

namespace diffattn::reference {
namespace {

constexpr double kFocusThreshold = 0.5;
constexpr double kCoverageThreshold = 0.1;

/// Returns the most that map 2 can cancel at column n: lambda p2, or 0 if lambda is negative.
template <class T>
double taken(const HeadMaps<T>& maps, int64_t n) {
  return std::max(maps.lambda * maps.p2[n], 0.0);
}

template <class T>
std::array<double, kStatCount> row_stats(const HeadMaps<T>& maps, double sparse_threshold) {
  std::array<double, kStatCount> stats{};
  if (maps.visible_count == 0) return stats;
  const double share = 1.0 / static_cast<double>(maps.visible_count);
  double plogp = 0.0;  // sum |A| log |A|
  bool first = true;
  for (int64_t n = maps.columns.begin; n < maps.columns.end; ++n) {
    if (!maps.visible[n]) continue;
    const double a = maps.difference(n);
    const double magnitude = std::abs(a);
    if (first) stats[kStatSinkMass] = a;
    stats[kStatMax] = first ? a : std::max(stats[kStatMax], a);
    first = false;
    stats[kStatAbsSum] += magnitude;
    stats[kStatSquareSum] += a * a;
    stats[kStatNegativeMass] += std::max(-a, 0.0);
    stats[kStatSparse] += magnitude < sparse_threshold ? share : 0.0;
    stats[kStatFocus] += magnitude > kFocusThreshold ? share : 0.0;
    stats[kStatCoverage] += a > kCoverageThreshold ? share : 0.0;
    stats[kStatCancelled] += std::min(maps.p1[n], taken(maps, n));
    stats[kStatOverlap] += std::min(maps.p1[n], maps.p2[n]);
    if (magnitude > 0.0) plogp += magnitude * std::log(magnitude);
  }
  stats[kStatVisible] = static_cast<double>(maps.visible_count);
  // -sum a log a with a = |A| / S equals log S - sum |A| log |A| / S.
  const double sum = stats[kStatAbsSum];
  stats[kStatEntropy] = sum > 0.0 ? std::log(sum) - plogp / sum : 0.0;
  return stats;
}

template <class T>
void run_stats(const StatsParams& params) {
  for (int64_t b = 0; b < params.batch; ++b) {
    for (int64_t h = 0; h < params.heads; ++h) {
      HeadMaps<T> maps(params, b, h);
      for (int64_t m = 0; m < maps.seq.seq_q; ++m) {
        maps.compute_row(m);
        const auto stats = row_stats(maps, params.sparse_threshold);
        store_row<Accumulator<T>>(params.stats, b, maps.seq.q_begin + m, h, stats.data(),
                                  kStatCount);
      }
    }
  }
}

template <class T>
struct StatsBackward {
  const StatsBackwardParams& params;
  InputGradients<T> inputs{params, params};

  void run() {
    const int64_t group = params.kv_heads == 0 ? 0 : params.heads / params.kv_heads;
    for (int64_t b = 0; b < params.batch; ++b) {
      for (int64_t g = 0; g < params.kv_heads; ++g) {
        inputs.begin_kv_head(b);
        for (int64_t h = g * group; h < (g + 1) * group; ++h) run_head(b, h);
        inputs.end_kv_head(b, g);
      }
    }
    inputs.finish();
  }

  void run_head(int64_t b, int64_t h) {
    HeadMaps<T> maps(params, b, h);
    for (int64_t m = 0; m < maps.seq.seq_q; ++m) {
      maps.compute_row(m);
      const std::vector<double> dstats =
          load_rows<Accumulator<T>>(params.dstats, b, maps.seq.q_begin + m, 1, h, kStatCount);
      run_row(maps, dstats, b, h, m);
    }
  }

  void run_row(const HeadMaps<T>& maps, const std::vector<double>& dstats, int64_t b, int64_t h,
               int64_t m) {
    const auto stats = row_stats(maps, 0.0);
    std::vector<double> dp1(maps.seq.seq_k), dp2(maps.seq.seq_k);
    double dlambda = 0.0;
    bool first = true, maximum_found = false;
    for (int64_t n = maps.columns.begin; n < maps.columns.end; ++n) {
      if (!maps.visible[n]) continue;
      const double a = maps.difference(n);
      double da = entry_gradient(a, stats, dstats);
      if (first) da += dstats[kStatSinkMass];
      if (!maximum_found && a == stats[kStatMax]) {  // the first of equal maxima gets all of it
        da += dstats[kStatMax];
        maximum_found = true;
      }
      first = false;
      dp1[n] = da;
      dp2[n] = -maps.lambda * da;
      dlambda -= da * maps.p2[n];
      add_minimum_gradients(maps, dstats, n, dp1[n], dp2[n], dlambda);
    }
    inputs.add_row(maps, b, h, m, dp1, dp2, dlambda);
  }

  /// Returns dA of the sums over |A|, A^2 and max(-A, 0) and of the entropy; sign(0) = 0.
  static double entry_gradient(double a, const std::array<double, kStatCount>& stats,
                               const std::vector<double>& dstats) {
    if (a == 0.0) return 0.0;
    const double sign = a > 0.0 ? 1.0 : -1.0;
    const double sum = stats[kStatAbsSum];
    // The derivative of H = log S - sum |A| log |A| / S by |A| is (log S - H - log |A|) / S.
    const double dentropy = (std::log(sum) - stats[kStatEntropy] - std::log(std::abs(a))) / sum;
    return sign * (dstats[kStatAbsSum] + dstats[kStatEntropy] * dentropy) +
           2.0 * a * dstats[kStatSquareSum] - (a < 0.0 ? dstats[kStatNegativeMass] : 0.0);
  }

  /// Adds the gradients of `cancelled` and `overlap`, which depend on p1, p2 and lambda directly.
  /// Each minimum passes its gradient to the smaller argument, or to p1 if both are equal.
  static void add_minimum_gradients(const HeadMaps<T>& maps, const std::vector<double>& dstats,
                                    int64_t n, double& dp1, double& dp2, double& dlambda) {
    const double cancelled = dstats[kStatCancelled], overlap = dstats[kStatOverlap];
    if (maps.p1[n] <= taken(maps, n)) {
      dp1 += cancelled;
    } else if (maps.lambda > 0.0) {
      dp2 += cancelled * maps.lambda;
      dlambda += cancelled * maps.p2[n];
    }
    (maps.p1[n] <= maps.p2[n] ? dp1 : dp2) += overlap;
  }
};

}  // namespace

void stats(const StatsParams& params) {
  validate(params, /*host_arrays=*/true);
  with_dtype(params.dtype, [&]<class T>() { run_stats<T>(params); });
}

void stats_backward(const StatsBackwardParams& params) {
  validate(params, /*host_arrays=*/true);
  with_dtype(params.dtype, [&]<class T>() { StatsBackward<T>{params}.run(); });
}

}  // namespace diffattn::reference
