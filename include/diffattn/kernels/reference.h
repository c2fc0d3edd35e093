// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "diffattn/kernels/params.h"

/// The specification as code: plain loops in double on one thread, with every option. The tests
/// hold every other backend to it. Pointers are host memory. Throws `Error` for wrong parameters.
namespace diffattn::reference {

void forward(const ForwardParams& params);
void backward(const BackwardParams& params);
void stats(const StatsParams& params);
void stats_backward(const StatsBackwardParams& params);
void map(const MapParams& params);

}  // namespace diffattn::reference
