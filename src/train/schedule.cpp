// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "diffattn/error.h"

namespace diffattn::train {

Decay decay_from_name(const std::string& name) {
  if (name == "constant") return Decay::kConstant;
  if (name == "linear") return Decay::kLinear;
  if (name == "cosine") return Decay::kCosine;
  throw Error("train.schedule: expected constant, linear or cosine, got '" + name + "'");
}

double Schedule::at(int64_t step) const {
  if (step < warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  const int64_t last = std::max<int64_t>(1, steps - 1 - warmup_steps);
  const double progress =
      std::min(1.0, static_cast<double>(step - warmup_steps) / static_cast<double>(last));
  const double floor = peak * final_fraction;
  switch (decay) {
    case Decay::kConstant: return peak;
    case Decay::kLinear: return floor + (peak - floor) * (1.0 - progress);
    case Decay::kCosine:
      return floor + (peak - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return peak;
}

}  // namespace diffattn::train
