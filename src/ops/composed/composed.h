// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/glue/entry.h"

/// The operators as compositions of ATen operators, on any device: slow, O(M N) memory, right. The
/// maps are those of docs/algorithm.md; gradients are autograd's.
namespace diffattn::ops::composed {

ForwardResult forward(const AttentionArguments& arguments, bool save_outputs);
BackwardResult backward(const Tensor& dout, const AttentionArguments& arguments, Wanted wanted);
Tensor stats(const ProblemArguments& arguments, double sparse_threshold);
BackwardResult stats_backward(const Tensor& dstats, const ProblemArguments& arguments,
                              StatsWanted wanted);
Tensor map(const ProblemArguments& arguments, const MapGrid& grid);

}  // namespace diffattn::ops::composed
