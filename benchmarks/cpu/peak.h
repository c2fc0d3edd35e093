// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace diffattn::bench {

/// FLOP per second of one core doing nothing but the multiply-adds that a backend's tiles are made
/// of, in registers: the best of several short runs. 0 for the reference.
double peak_flops(std::string_view backend);

}  // namespace diffattn::bench
