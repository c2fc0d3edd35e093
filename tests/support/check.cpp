// SPDX-License-Identifier: Apache-2.0
#include "tests/support/check.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "tests/support/compare.h"
#include "tests/support/naive.h"
#include "tests/support/oracle.h"
#include "tests/support/tolerance.h"

namespace diffattn::testing {
namespace {

/// One output tensor and its truth.
struct Checked {
  const char* name;
  const std::vector<double>& got;
  const Measured& truth;
  const std::vector<double>* naive;  // null: no yardstick
  Dims dims;
  Dtype stored;  // element type of the tensor itself
};

/// Returns the number of terms of the longest sum behind an element.
double longest_sum(const Case& c, bool forward) {
  return static_cast<double>(
      std::max({c.spec.seq_k, c.spec.head_dim, forward ? c.spec.value_dim : c.rows_q()}));
}

/// Returns the relative error of a sum of positive terms with probabilities in them: the error of
/// the scores plus that of the sum.
double accumulator_error(const Case& c, bool forward, double score_magnitude) {
  return (kScoreFactor * score_magnitude + kSumRoundings +
          kSumRoundingsPerTerm * longest_sum(c, forward)) *
         unit_roundoff(c.accumulator);
}

/// Returns the most that underflow loses per term. All kernels keep fp16 subnormals; they may flush
/// those of fp32, whose exponents bf16 shares. A term of a gradient is also multiplied by a q or k
/// of the case's spread.
double lost_to_underflow(const Case& c, bool forward) {
  constexpr double kSmallestFloat = 0x1p-126;
  const double smallest = c.dtype == Dtype::kBFloat16 || c.dtype == Dtype::kFloat32
                              ? kSmallestFloat
                              : ulp(c.dtype, 0.0);
  return forward ? smallest : smallest * std::max(1.0, c.spec.logit_spread);
}

/// Returns the largest error that rounding can cause, element by element (tolerance.h).
std::vector<double> element_bounds(const Case& c, bool forward, double score_magnitude,
                                   const Measured& truth, Dtype stored) {
  const double roundings = forward ? kForwardStorageRoundings : kBackwardStorageRoundings;
  const double unit =
      roundings * unit_roundoff(c.dtype) + accumulator_error(c, forward, score_magnitude);
  const double smallest = lost_to_underflow(c, forward) * longest_sum(c, forward);
  std::vector<double> bounds(truth.value.size());
  for (size_t i = 0; i < bounds.size(); ++i) {
    bounds[i] = ulp(stored, truth.value[i]) + unit * truth.magnitude[i] + smallest;
  }
  return bounds;
}

/// Error sums over a group of elements: a head or the whole tensor.
struct Errors {
  int64_t count = 0;
  double squares = 0, truth_squares = 0, magnitude_squares = 0;
  double sum = 0, naive_sum = 0, ulp_sum = 0, magnitude_sum = 0;
  double max = 0, naive_max = 0;  // of (error - ulp) / unit and naive error / unit

  void add(const Errors& other) {
    count += other.count;
    squares += other.squares;
    truth_squares += other.truth_squares;
    magnitude_squares += other.magnitude_squares;
    sum += other.sum;
    naive_sum += other.naive_sum;
    ulp_sum += other.ulp_sum;
    magnitude_sum += other.magnitude_sum;
    max = std::max(max, other.max);
    naive_max = std::max(naive_max, other.naive_max);
  }
};

struct Checker {
  static constexpr int64_t kWholeTensor = -1;  // instead of a head index

  const Case& c;
  bool forward;
  double score_magnitude;
  double mean_columns;  // columns that a row sees on average
  Tally& tally;
  bool ok = true;

  bool is_low_precision() const {
    return c.dtype == Dtype::kBFloat16 || c.dtype == Dtype::kFloat16;
  }

  void fail(const Checked& x, const std::string& what) {
    ok = false;
    ADD_FAILURE() << x.name << ": " << what << "\n  " << c.describe();
  }

  void check(const Checked& x) {
    if (x.got.size() != x.truth.value.size()) {
      return fail(x, "has " + std::to_string(x.got.size()) + " elements, want " +
                         std::to_string(x.truth.value.size()));
    }
    check_elements(x);
    if (!ok) return;  // later checks would fail for the same reason, with less detail
    const int64_t heads = x.dims.heads;
    std::vector<Errors> head_errors(heads);
    Errors all;
    add_errors(x, head_errors);
    for (int64_t h = 0; h < heads; ++h) {
      check_group(x, head_errors[h], h);
      all.add(head_errors[h]);
    }
    if (heads > 1) check_group(x, all, kWholeTensor);
  }

  void check_elements(const Checked& x) {
    const std::vector<double> bounds =
        element_bounds(c, forward, score_magnitude, x.truth, x.stored);
    const Comparison result = compare(x.got, x.truth.value, [&](int64_t i) { return bounds[i]; });
    tally.worst_share = std::max(tally.worst_share, result.worst_share);
    if (!result.ok()) fail(x, describe(result, x.dims));
  }

  /// Adds up the errors of every head.
  void add_errors(const Checked& x, std::vector<Errors>& head_errors) const {
    const int64_t rows = x.dims.batch * x.dims.seq, width = x.dims.width;
    size_t i = 0;
    for (int64_t row = 0; row < rows; ++row) {
      for (Errors& errors : head_errors) {
        for (int64_t d = 0; d < width; ++d, ++i) add_error(x, i, errors);
      }
    }
  }

  void add_error(const Checked& x, size_t i, Errors& errors) const {
    const double want = x.truth.value[i], error = std::abs(x.got[i] - want);
    const double magnitude = x.truth.magnitude[i];
    const double last_place = ulp(x.stored, want);
    ++errors.count;
    errors.squares += error * error;
    errors.truth_squares += want * want;
    errors.magnitude_squares += magnitude * magnitude;
    errors.magnitude_sum += magnitude;
    errors.sum += error;
    errors.ulp_sum += last_place;
    if (x.naive == nullptr) return;
    const double naive_error = std::abs((*x.naive)[i] - want);
    errors.naive_sum += naive_error;
    const double unit = forward ? magnitude : 1.0;
    if (unit == 0.0) return;
    errors.max = std::max(errors.max, (error - last_place) / unit);
    errors.naive_max = std::max(errors.naive_max, naive_error / unit);
  }

  /// Checks the promise over head h, or over the whole tensor.
  void check_group(const Checked& x, const Errors& errors, int64_t h) {
    const auto [count, squares, truth_squares, magnitude_squares, sum, naive_sum, ulp_sum,
                magnitude_sum, max, naive_max] = errors;
    if (count == 0) return;
    const bool enough = count >= kYardstickElements && mean_columns >= kYardstickColumns;
    if (!is_low_precision() || (forward && enough && tally.yardstick)) {
      const double norm =
          std::max(std::sqrt(truth_squares), kCancellationShare * std::sqrt(magnitude_squares));
      // Half the smallest number per element: smaller results round to 0.
      const double floor = 0.5 * ulp(x.stored, 0.0) * std::sqrt(static_cast<double>(count));
      expect(x, h, "Frobenius error", std::sqrt(squares),
             relative_frobenius(c.dtype) * norm + floor);
    }
    if (x.naive == nullptr || !is_low_precision() || !enough) return;
    if (magnitude_sum > 0) {
      tally.error += sum / magnitude_sum;
      tally.naive_error += naive_sum / magnitude_sum;
    }
    if (!tally.yardstick) return;
    const double max_ratio = forward ? kForwardMaxRatio : kBackwardMaxRatio;
    const double mean_ratio = forward ? kForwardMeanRatio : kBackwardMeanRatio;
    expect(x, h, "max error less one ulp, against naive's", max, max_ratio * naive_max);
    expect(x, h, "mean error, against naive's", sum / static_cast<double>(count),
           (mean_ratio * naive_sum + 0.5 * ulp_sum) / static_cast<double>(count));
  }

  void expect(const Checked& x, int64_t h, const char* what, double error, double bound) {
    if (bound > 0) tally.worst_share = std::max(tally.worst_share, error / bound);
    if (error <= bound) return;
    std::ostringstream text;
    if (h == kWholeTensor) {
      text << "tensor: ";
    } else {
      text << "head " << h << ": ";
    }
    text << what << " " << error << ", bound " << bound;
    fail(x, text.str());
  }

  /// Checks lse. It has hardly any cancellation, so its error is that of the scores plus its own
  /// rounding.
  void check_lse(const char* name, const std::vector<double>& got,
                 const std::vector<double>& want) {
    const Comparison result = compare(got, want, [&](int64_t i) {
      return accumulator_error(c, forward, score_magnitude) +
             std::abs(want[i]) * unit_roundoff(c.accumulator);
    });
    tally.worst_share = std::max(tally.worst_share, result.worst_share);
    if (result.ok()) return;
    ok = false;
    ADD_FAILURE() << name << ": " << describe(result, c.query_dims(1)) << "\n  " << c.describe();
  }
};

/// Calls f with the naive code of the case's type. Does nothing for float64 and float32, which have
/// absolute bounds.
template <class F>
void with_naive(const Oracle<double>& oracle, F&& f) {
  if (oracle.c.dtype == Dtype::kBFloat16) {
    f(Naive<BFloat16>(oracle));
  } else if (oracle.c.dtype == Dtype::kFloat16) {
    f(Naive<Float16>(oracle));
  }
}

template <class R>
double mean_columns(const Oracle<R>& oracle) {
  const double rows = static_cast<double>(std::max<size_t>(1, oracle.seen.size()));
  return static_cast<double>(std::accumulate(oracle.seen.begin(), oracle.seen.end(), int64_t{0})) /
         rows;
}

template <class R>
bool check_forward_with(const Target& target, const Case& c, Tally& tally) {
  const Oracle<R> oracle(c);
  const ForwardTruth truth = oracle.forward();
  std::optional<NaiveForward> naive;
  if constexpr (std::is_same_v<R, double>) {
    with_naive(oracle, [&](auto yardstick) { naive = yardstick.forward(); });
  }
  const ForwardResult result = run_forward(*target.backend, c);
  Checker checker{c, true, oracle.score_magnitude, mean_columns(oracle), tally};
  const Dims dims = c.query_dims(c.spec.value_dim);
  checker.check_lse("lse1", result.lse1, truth.lse1);
  checker.check_lse("lse2", result.lse2, truth.lse2);
  checker.check({"out", result.out, truth.out, naive ? &naive->out : nullptr, dims, c.dtype});
  if (c.spec.save_o) {
    checker.check({"o", result.o, truth.o, naive ? &naive->o : nullptr, dims, c.dtype});
    checker.check({"o2", result.o2, truth.o2, naive ? &naive->o2 : nullptr, dims, c.dtype});
  }
  return checker.ok;
}

template <class R>
bool check_backward_with(const Target& target, const Case& c, Tally& tally) {
  const Oracle<R> oracle(c);
  const BackwardTruth truth = oracle.backward();
  std::optional<NaiveBackward> naive;
  if constexpr (std::is_same_v<R, double>) {
    with_naive(oracle, [&](auto yardstick) { naive = yardstick.backward(); });
  }
  const BackwardResult result = run_backward(*target.backend, c);
  Checker checker{c, false, oracle.score_magnitude, mean_columns(oracle), tally};
  const Spec& s = c.spec;
  const auto check = [&](const char* name, const std::vector<double>& got, const Measured& want,
                         std::vector<double> NaiveBackward::*yardstick, Dims dims, Dtype stored) {
    checker.check({name, got, want, naive ? &((*naive).*yardstick) : nullptr, dims, stored});
  };
  using N = NaiveBackward;
  check("dq1", result.dq1, truth.dq1, &N::dq1, c.query_dims(s.head_dim), c.dtype);
  check("dq2", result.dq2, truth.dq2, &N::dq2, c.noise_dims(s.head_dim), c.dtype);
  check("dk1", result.dk1, truth.dk1, &N::dk1, c.key_dims(s.head_dim), c.dtype);
  check("dk2", result.dk2, truth.dk2, &N::dk2, c.key_dims(s.head_dim), c.dtype);
  check("dv", result.dv, truth.dv, &N::dv, c.key_dims(s.value_dim), c.dtype);
  check("dlambda", result.dlambda, truth.dlambda, &N::dlambda, c.lambda_dims(), c.accumulator);
  if (s.norm) {
    check("dnorm_weight", result.dnorm_weight, truth.dnorm_weight, &N::dnorm_weight,
          {1, 1, 1, s.value_dim}, c.accumulator);
  }
  if (s.mask == MaskKind::kAdditive) {
    check("dmask", result.dmask, truth.dmask, &N::dmask, c.mask_dims(), c.accumulator);
  }
  return checker.ok;
}

}  // namespace

bool check_forward(const Target& target, const Spec& spec, Tally& tally) {
  return check_forward(target, Case(spec, target.dtype), tally);
}

bool check_forward(const Target& target, const Case& c, Tally& tally) {
  if (!target.backend->takes(c.problem())) return true;
  ++tally.cases;
  return target.dtype == Dtype::kFloat64 ? check_forward_with<long double>(target, c, tally)
                                         : check_forward_with<double>(target, c, tally);
}

bool check_backward(const Target& target, const Spec& spec, Tally& tally) {
  return check_backward(target, Case(spec, target.dtype), tally);
}

bool check_backward(const Target& target, const Case& c, Tally& tally) {
  if (!target.backend->takes(c.problem())) return true;
  ++tally.cases;
  return target.dtype == Dtype::kFloat64 ? check_backward_with<long double>(target, c, tally)
                                         : check_backward_with<double>(target, c, tally);
}

std::vector<double> out_tolerance(const Case& c) {
  const Oracle<double> oracle(c);
  std::vector<double> bounds =
      element_bounds(c, true, oracle.score_magnitude, oracle.forward().out, c.dtype);
  for (double& x : bounds) x *= 2;
  return bounds;
}

}  // namespace diffattn::testing
