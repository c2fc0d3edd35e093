// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/kernels/params.h"

/// The specification: plain loops in double, one thread, the whole option space. Every other
/// backend is tested against it. Pointers are host memory. Throws `Error` for wrong parameters.
namespace diffattn::reference {

void forward(const ForwardParams& params);
void backward(const BackwardParams& params);
void stats(const StatsParams& params);
void stats_backward(const StatsBackwardParams& params);
void map(const MapParams& params);

}  // namespace diffattn::reference
