// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "diffattn/kernels/view.h"

/// Every tolerance of the kernel tests, with its reason. "The promise" is the accuracy that the
/// README states. "Naive" is naive.h: the paper's code in the same storage type. Errors are
/// measured against the oracle in a wider type.
namespace diffattn::testing {

/// Returns half the distance from 1 to the next number: the largest relative error of one rounding.
constexpr double unit_roundoff(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64: return 0x1p-53;
    case Dtype::kFloat32: return 0x1p-24;
    case Dtype::kBFloat16: return 0x1p-8;
    case Dtype::kFloat16: return 0x1p-11;
  }
  return 0;
}

// --- Whole tensors and heads: the promise --------------------------------------------------------

/// Largest relative Frobenius error of a forward result, and of gradients in float64 and float32
/// (bf16 and fp16 gradients are only compared with naive). With unit roundoff u, fp32 and fp64
/// allow 17 and 450 times the machine epsilon 2 u. In bf16 and fp16, one rounding of the output has
/// a root mean square error of 0.4 u (1.6e-3, 2e-4); the rest is for probabilities rounded to the
/// storage type before the product with v.
constexpr double relative_frobenius(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64: return 1e-13;
    case Dtype::kFloat32: return 2e-6;
    case Dtype::kBFloat16: return 3e-3;
    case Dtype::kFloat16: return 4e-4;
  }
  return 0;
}

/// Relative errors divide by the norm of the truth, but at least by this share of the norm that the
/// result would have without cancellation. If P1 v and lambda P2 v cancel by more than two thirds,
/// the rounding errors of the larger numbers dominate in any implementation.
inline constexpr double kCancellationShare = 1.0 / 3.0;

/// bf16 and fp16, over the tensor and over each head: the largest error is at most this many times
/// naive's, plus one unit in the last place of the element. Forward errors are divided by the
/// element's magnitude, so that a single row that the head norm scales up does not dominate. The
/// worst case of the grid reached 0.63 of these bounds with one rounding at the end (reference) and
/// 0.92 with probabilities rounded for the product with v.
inline constexpr double kForwardMaxRatio = 1.0;
inline constexpr double kBackwardMaxRatio = 1.25;
/// The mean error is at most this many times naive's, plus half a unit in the last place: the
/// largest error of a correctly rounded result. Measured over the grid without that half unit:
/// forward 0.39 (reference) and 0.64 (rounded probabilities), backward 0.39 and 0.59.
inline constexpr double kForwardMeanRatio = 0.75;
inline constexpr double kBackwardMeanRatio = 1.0;
/// These comparisons, and the Frobenius norm in bf16 and fp16, need at least this many elements and
/// this many visible columns per row on average. In a short row, a few roundings of its
/// probabilities are common to all elements, and naive may happen to have none of them.
inline constexpr int64_t kYardstickElements = 1024;
inline constexpr double kYardstickColumns = 16.0;

// --- Every element: the largest error that rounding can cause ------------------------------------

/// |error| <= ulp + (k u + (4 S + 8 + n/4) a) magnitude + n smallest
///
/// u and a are the unit roundoffs of the storage type and the accumulator, S the largest score
/// magnitude, n the length of the longest sum, magnitude the sum of the terms' absolute values, and
/// `smallest` the most that underflow can lose per term (check.cpp). A score has an error of a few
/// S a, which is the relative error of its probability; the other multiples of a come from sums.
/// k forward: probabilities are rounded once for the product with v; the ulp covers the rounding of
/// the result. k backward: P, dS and dO are rounded for matrix products, and delta = dO.O may use
/// an O that was rounded when it was saved.
inline constexpr double kForwardStorageRoundings = 1.25;
inline constexpr double kBackwardStorageRoundings = 4.0;
inline constexpr double kScoreFactor = 4.0;
inline constexpr double kSumRoundings = 8.0;
inline constexpr double kSumRoundingsPerTerm = 0.25;

// --- Numeric derivatives -------------------------------------------------------------------------

/// |analytic - numeric| <= atol + rtol |numeric|, in double. With this step h, the five-point
/// stencil has an error of h^4 f'''''/30 (3e-14 f''''') plus 1e-16/h (1e-13) per unit of f.
inline constexpr double kGradcheckAtol = 1e-7;
inline constexpr double kGradcheckRtol = 1e-6;
inline constexpr double kGradcheckStep = 1e-3;
/// Statistics have kinks (|A|, max, min) that a step must not cross. So their step is short, and
/// the stencil has two points: its error is h^2 f'''/6 (2e-13 f''') plus 1e-16/h (1e-10).
inline constexpr double kStatsGradcheckStep = 1e-6;

// --- Statistics and maps -------------------------------------------------------------------------

/// Entries of the maps lie in [-|lambda|, 1]. They, and sums over a row of them, have errors up to
/// this many accumulator roundings times (1 + S); the extra factor log N of the entropy fits in.
/// Thresholded shares may differ by the entries that lie this close to the threshold.
inline constexpr double kStatRoundings = 32.0;
/// The gradients of statistics, p (dp - sum p dp), cancel within a row, to 0 if it sees one column.
/// The remaining error is at most this many accumulator roundings of |dstats| times |q| or |k|, all
/// Frobenius norms; 0.1 was measured.
inline constexpr double kStatGradientRoundings = 1.0;

}  // namespace diffattn::testing
