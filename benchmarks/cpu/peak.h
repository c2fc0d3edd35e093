// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace diffattn::bench {

/// Returns the peak FLOP/s of one core: the best of several short runs of nothing but the
/// multiply-add instruction that the backend's tiles use, in registers. 0 for the reference.
double peak_flops(std::string_view backend);

}  // namespace diffattn::bench
