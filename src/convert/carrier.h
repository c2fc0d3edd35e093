// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "convert/plan.h"

/// The constant half of the values that keeps DiffLlama's head norm neutral: see llama_diff.cpp.
namespace diffattn::convert {

/// The largest size (root of the mean square over a head) that values of the first `heads` heads
/// take for an input of one feature; inputs of unit size spread over the features give about the
/// same. `prefix` is the attention's, `shape` its v_proj's.
double largest_values(Plan& plan, const std::string& prefix, const Shape& shape,
                      std::int64_t heads);

/// The carrier's size, sqrt(mean c^2), for which the head norm of a layer is a factor of 2^-k.
double carrier_size(std::int64_t layer, int k);

}  // namespace diffattn::convert
