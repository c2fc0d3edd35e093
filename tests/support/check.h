// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/run.h"

namespace diffattn::testing {

/// What many cases together show: errors may not only be small one by one.
struct Tally {
  /// Hold each case to the naive code, not only their sum. Off where seeds are fresh: a kernel that
  /// rounds its probabilities for a matrix product is worse than naive in one small case of
  /// thousands.
  bool yardstick = true;
  int64_t cases = 0;         // that the backend took
  double error = 0.0;        // sum of mean errors, each in units of its tensor's mean magnitude
  double naive_error = 0.0;  // ... of the naive code, on the same elements
  double worst_share = 0.0;  // of any bound
};

/// Runs the case and holds every output to tolerance.h. False, with a test failure that names the
/// worst element and the case, when one is off. A case the backend does not take is not counted.
bool check_forward(const Target& target, const Spec& spec, Tally& tally);
bool check_backward(const Target& target, const Spec& spec, Tally& tally);
/// The same for a case of the target's type.
bool check_forward(const Target& target, const Case& c, Tally& tally);
bool check_backward(const Target& target, const Case& c, Tally& tally);

/// How far two correct values of `out` may lie apart, element by element: twice the bound of each.
std::vector<double> out_tolerance(const Case& c);

}  // namespace diffattn::testing
