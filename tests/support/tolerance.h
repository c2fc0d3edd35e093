// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "diffattn/kernels/view.h"

/// Every tolerance of the kernel tests, with its reason. Promise numbers: what the README promises
/// of accuracy. "Naive" is naive.h, the paper's code in the same storage type; errors are against
/// the oracle in a wider type.
namespace diffattn::testing {

/// Half the distance from 1 to the next number: the most that one rounding errs, relatively.
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

/// Relative Frobenius error of a forward result, and of gradients in double and float (bf16 and
/// fp16 gradients are measured against naive only). fp32 and fp64: 17 and 450 roundings' worth.
/// bf16 and fp16: one rounding of the output errs 0.4 u in the mean square (1.6e-3, 2e-4), the rest
/// is left for probabilities rounded to the storage type on their way into a matrix product.
constexpr double relative_frobenius(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64: return 1e-13;
    case Dtype::kFloat32: return 2e-6;
    case Dtype::kBFloat16: return 3e-3;
    case Dtype::kFloat16: return 4e-4;
  }
  return 0;
}

/// The norm that relative errors are relative to is at least this share of the norm the result
/// would have without cancellation. Where P1 v and lambda P2 v agree to more than two thirds, what
/// is left is rounding error of the larger numbers, in any implementation.
inline constexpr double kCancellationShare = 1.0 / 3.0;

/// bf16 and fp16 against naive, over the tensor and over each head: the largest error is at most
/// this many times naive's, plus one unit in the last place of the element. Forward errors are
/// taken in units of the element's magnitude, so that one row that the head norm blows up does not
/// decide alone. The grid's worst share of any of these bounds: 0.63 with one rounding at the end
/// (reference), 0.92 with probabilities rounded for the product with v.
inline constexpr double kForwardMaxRatio = 1.0;
inline constexpr double kBackwardMaxRatio = 1.25;
/// ... and the mean error this many times naive's mean, plus half a unit in the last place: the
/// most that a correctly rounded result errs. Over all cases of the grid, without that half unit,
/// measured forward 0.39 (reference) and 0.64 (rounded probabilities), backward 0.39 and 0.59.
inline constexpr double kForwardMeanRatio = 0.75;
inline constexpr double kBackwardMeanRatio = 1.0;
/// Both, and the Frobenius norm in bf16 and fp16, need this many elements and this many columns a
/// row sees on average: the errors of a short row are a few roundings of its probabilities, common
/// to all its elements, and naive can be lucky in all of them.
inline constexpr int64_t kYardstickElements = 1024;
inline constexpr double kYardstickColumns = 16.0;

// --- Every element: what rounding can do at most -------------------------------------------------

/// |error| <= ulp + (k u + (4 S + 8 + n/4) a) magnitude + n smallest, where u is the storage type's
/// unit, a the accumulator's, S the largest score magnitude, n the longest sum, and magnitude the
/// sum of the terms' absolute values; `smallest` is what underflow can lose at most once a term
/// (see check.cpp). a: a score errs by a few S a, which its probability then errs by
/// relatively; the rest are the sums. k forward: probabilities are rounded once on their way into
/// the product with v, and rounding an O that is saved is the ulp. k backward: P, dS and dO are
/// rounded for matrix products, and delta = dO.O may come from an O that was saved rounded.
inline constexpr double kForwardStorageRoundings = 1.25;
inline constexpr double kBackwardStorageRoundings = 4.0;
inline constexpr double kScoreFactor = 4.0;
inline constexpr double kSumRoundings = 8.0;
inline constexpr double kSumRoundingsPerTerm = 0.25;

// --- Derivatives by differences ------------------------------------------------------------------

/// |analytic - numeric| <= atol + rtol |numeric|, in double. The five-point stencil with this step
/// errs by h^4 f'''''/30 (3e-14 f''''') and by 1e-16/h (1e-13) per unit of the function.
inline constexpr double kGradcheckAtol = 1e-7;
inline constexpr double kGradcheckRtol = 1e-6;
inline constexpr double kGradcheckStep = 1e-3;
/// Statistics have kinks (|A|, max, min), which a step must not reach across: a short one, and the
/// two-point stencil, which errs by h^2 f'''/6 (2e-13 f''') and by 1e-16/h (1e-10).
inline constexpr double kStatsGradcheckStep = 1e-6;

// --- Statistics and maps -------------------------------------------------------------------------

/// Entries of the maps are within [-|lambda|, 1]; they and sums over a row of them err by this many
/// accumulator roundings times (1 + S) (entropy: times log N more, well within). Thresholded shares
/// may differ by the entries that lie this close to the threshold.
inline constexpr double kStatRoundings = 32.0;
/// Their gradients cancel within a row, p (dp - sum p dp), to 0 where it sees one column. What is
/// left errs by this many accumulator roundings of |dstats| times |q| or |k|, Frobenius norms all;
/// measured 0.1.
inline constexpr double kStatGradientRoundings = 1.0;

}  // namespace diffattn::testing
