// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/run.h"

namespace diffattn::testing {

/// Errors summed over many cases, so that a test can also bound their average.
struct Tally {
  /// Compare each case with the naive code, not only the sum over cases. False for fresh seeds: a
  /// kernel that rounds probabilities for a matrix product loses to naive in one small case of
  /// thousands.
  bool yardstick = true;
  int64_t cases = 0;         // cases that the backend took
  double error = 0.0;        // sum of mean errors, each divided by its tensor's mean magnitude
  double naive_error = 0.0;  // the same for the naive code, on the same elements
  double worst_share = 0.0;  // largest error / bound of any check
};

/// Runs the case and checks every output against tolerance.h. If one fails, reports a test failure
/// with the worst element and the case, and returns false. Ignores cases the backend does not take.
bool check_forward(const Target& target, const Spec& spec, Tally& tally);
bool check_backward(const Target& target, const Spec& spec, Tally& tally);
/// The same for a case of the target's type.
bool check_forward(const Target& target, const Case& c, Tally& tally);
bool check_backward(const Target& target, const Case& c, Tally& tally);

/// Returns the largest difference between two correct values of `out`, element by element: twice
/// the bound of one.
std::vector<double> out_tolerance(const Case& c);

}  // namespace diffattn::testing
