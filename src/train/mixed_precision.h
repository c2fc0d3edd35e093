// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <string>

namespace diffattn::train {

/// A scope in which matrix products run in bfloat16 if `dtype` is "bfloat16". The weights stay
/// float32; each is converted to bfloat16 once per scope.
class MixedPrecision {
 public:
  MixedPrecision(torch::Device device, const std::string& dtype)
      : device_(device.type()), on_(dtype == "bfloat16") {
    if (!on_) return;
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, torch::kBFloat16);
  }
  MixedPrecision(const MixedPrecision&) = delete;
  MixedPrecision& operator=(const MixedPrecision&) = delete;
  ~MixedPrecision() {
    if (!on_) return;
    at::autocast::set_autocast_enabled(device_, false);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }

 private:
  c10::DeviceType device_;
  bool on_;
};

}  // namespace diffattn::train
