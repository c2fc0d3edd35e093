// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace diffattn::app {

/// Measures the FLOP/s of float32 multiply-adds on one thread, with the widest vectors of this CPU,
/// and returns it times `threads`: an upper bound for every kernel. Takes about 50 ms.
double measure_fma_peak(int threads);

}  // namespace diffattn::app
