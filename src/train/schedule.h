// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace diffattn::train {

enum class Decay { kConstant, kLinear, kCosine };

/// "constant", "linear" or "cosine"; throws std::invalid_argument for anything else.
Decay decay_from_name(const std::string& name);

/// Linear warm-up from 0 to `peak`, then decay to `final_fraction * peak` at the last step.
struct Schedule {
  double peak = 6e-4;
  double final_fraction = 0.1;
  int64_t warmup_steps = 0;
  int64_t steps = 1;
  Decay decay = Decay::kCosine;

  /// Learning rate of update `step`, which counts from 0. The first update of a warm-up of w steps
  /// has peak / w, update w - 1 has the peak.
  double at(int64_t step) const;
};

}  // namespace diffattn::train
