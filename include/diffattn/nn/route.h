// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "diffattn/nn/attention_layer.h"

namespace diffattn::nn {

/// The ways to compute one differential attention. All compute the same function, with every mask.
/// They differ in time, memory and rounding.
enum class Route {
  kFused,           // this library's operator
  kNaive,           // both maps in memory
  kTwoCalls,        // one call of torch's attention per map (flashdiff_1)
  kTwoCallsPadded,  // the same, q and k padded to the width of v
  kFourCalls,       // one call per map and half of v (flashdiff_2)
  kOneCall4h,       // one call with 4H heads of equal widths
  kOneCallWideV,    // one call with 2H heads and the whole v
  kZeroPaddedGqa,   // one call, query heads [q1|0] and [0|q2] on key heads [k1|k2]
};

/// Returns every route, fused first.
const std::vector<Route>& routes();

/// Returns the name of a route: "fused", "naive", "two calls", ...
std::string route_name(Route route);
/// Parses a name. Ignores case, spaces and punctuation; throws for unknown names.
Route route_from_name(const std::string& name);

/// Computes out [B, M, H, Dv] (packed [total, H, Dv]), with head norm, out_scale and gradients.
/// Supports every option of `attention`. The fused route uses `diffattn::decode` for few rows
/// without gradients. A row that sees no column gives 0.
torch::Tensor attend(Route route, const HeadTensors& heads);

}  // namespace diffattn::nn
