// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "convert/plan.h"

/// The carrier: a constant half of the values that makes DiffLlama's head norm a constant factor.
/// See llama_diff.cpp.
namespace diffattn::convert {

/// Returns the largest root mean square that the values of one of the first `heads` heads take for
/// an input with a single non-zero feature. An input of the same norm over all features gives about
/// the same. `prefix` is that of the attention layer, `shape` that of its v_proj.
double largest_values(Plan& plan, const std::string& prefix, const Shape& shape, int64_t heads);

/// Returns the size sqrt(mean c^2) of a carrier with which the head norm of a layer is a factor
/// 2^-k.
double carrier_size(int64_t layer, int k);

}  // namespace diffattn::convert
