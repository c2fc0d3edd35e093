// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "diffattn/kernels/params.h"

namespace diffattn::cpu {

/// Sums dlambda. Every row writes its own part; store() then adds the parts of each element in
/// double, in row order.
class DlambdaSum {
 public:
  DlambdaSum(const Problem& problem, const ProblemGradients& gradients);
  explicit DlambdaSum(const BackwardParams& params) : DlambdaSum(params, params) {}

  /// Returns where row (b, l, h) writes its part; null if dlambda is not wanted.
  float* row(int64_t b, int64_t l, int64_t h);
  void store() const;

 private:
  const Problem& problem_;
  const View<void> out_;
  const bool packed_;
  const int64_t rows_;        // of one batch entry, or of all when packed
  std::vector<float> parts_;  // [B, rows, H], packed [rows, H]
};

/// Sets every element of dmask to 0.
void clear_dmask(const BackwardParams& params);

}  // namespace diffattn::cpu
