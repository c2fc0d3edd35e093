// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "diffattn/kernels/params.h"
#include "kernels/with_dtype.h"

namespace diffattn::reference {

/// Step (5) and its gradient (6) for one row O [Dv], elementwise and in double:
///
///   out = out_scale * weight * O * rstd,   rstd = 1 / sqrt(mean(O^2) + eps)
///
/// Without head norm, weight and rstd are 1.
template <class T>
class HeadEpilogue {
 public:
  HeadEpilogue(const Epilogue& epilogue, int64_t value_dim)
      : norm_(epilogue.norm), eps_(epilogue.norm_eps), gain_(value_dim, epilogue.out_scale) {
    const auto* weight = static_cast<const Accumulator<T>*>(epilogue.norm_weight);
    if (norm_ && weight != nullptr) {
      for (int64_t c = 0; c < value_dim; ++c) gain_[c] *= weight[c];
    }
  }

  /// Computes out from O in place.
  void apply(std::span<double> o) const {
    const double r = rstd(o);
    for (size_t c = 0; c < o.size(); ++c) o[c] *= gain_[c] * r;
  }

  /// Computes dO from dout in place, given O. Adds the row's part of dnorm_weight / out_scale to
  /// `dweight`.
  void apply_backward(std::span<const double> o, std::span<double> dout,
                      std::span<double> dweight) const {
    const double r = rstd(o);
    double mean = 0.0;  // mean(gain * dout * O)
    for (size_t c = 0; c < o.size(); ++c) {
      dweight[c] += dout[c] * o[c] * r;
      dout[c] *= gain_[c];
      mean += dout[c] * o[c];
    }
    mean = norm_ ? mean / static_cast<double>(o.size()) : 0.0;
    // With g = gain * dout, the gradient of O * r(O) is r * (g - O * r^2 * mean(g * O)).
    for (size_t c = 0; c < o.size(); ++c) dout[c] = r * (dout[c] - o[c] * r * r * mean);
  }

 private:
  double rstd(std::span<const double> o) const {
    if (!norm_) return 1.0;
    double sum = 0.0;
    for (const double x : o) sum += x * x;
    return 1.0 / std::sqrt(sum / static_cast<double>(o.size()) + eps_);
  }

  const bool norm_;
  const double eps_;
  std::vector<double> gain_;  // [Dv]: out_scale * weight
};

}  // namespace diffattn::reference
