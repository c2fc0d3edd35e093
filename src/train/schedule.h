// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace diffattn::train {

enum class Decay { kConstant, kLinear, kCosine };

/// Converts "constant", "linear" or "cosine". Throws diffattn::Error for another name.
Decay decay_from_name(const std::string& name);

/// Learning rates: linear warm-up from 0 to `peak`, then decay to `final_fraction * peak` in the
/// last update.
struct Schedule {
  double peak = 6e-4;
  double final_fraction = 0.1;
  int64_t warmup_steps = 0;
  int64_t steps = 1;
  Decay decay = Decay::kCosine;

  /// Returns the learning rate of update `step`, counted from 0. With a warm-up of w steps, update
  /// 0 has peak / w and update w - 1 has the peak.
  double at(int64_t step) const;
};

}  // namespace diffattn::train
