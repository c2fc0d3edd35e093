// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

/// The ways to compute one differential attention. All give the same numbers, for every mask; they
/// differ in time, memory and rounding.
enum class Route {
  kFused,           // the operator of this library
  kNaive,           // both maps in memory
  kTwoCalls,        // one call of torch's attention per map (flashdiff_1)
  kTwoCallsPadded,  // the same, q and k padded to the width of v
  kFourCalls,       // per map and half of v (flashdiff_2)
  kOneCall4h,       // one call with 4H heads of equal widths
  kOneCallWideV,    // one call with 2H heads and v as it is
  kZeroPaddedGqa,   // one call, query heads [q1|0] and [0|q2] on key heads [k1|k2]
};

/// Every route, fused first.
const std::vector<Route>& routes();

/// As it is shown and typed: "fused", "naive", "two calls", ...
std::string route_name(Route route);
/// The other way round, whatever the spaces, signs and case; throws for unknown names.
Route route_from_name(const std::string& name);

/// out [B, M, H, Dv] (packed [total, H, Dv]), head norm and out_scale included, with gradients.
/// Takes every option of `attention`. The fused route decodes (no gradients wanted, few rows) with
/// `diffattn::decode`. A row that may see nothing gives 0.
torch::Tensor attend(Route route, const HeadTensors& heads);

}  // namespace diffattn::nn
