// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/glue/arguments.h"

/// The operators as compositions of ATen operators, on any device. They are slow and need O(M N)
/// memory. The maps are those of docs/algorithm.md; autograd gives the gradients.
namespace diffattn::ops::composed {

ForwardResult forward(const AttentionArguments& arguments, SavedOutputs save);
BackwardResult backward(const Tensor& dout, const AttentionArguments& arguments, Wanted wanted);
Tensor stats(const ProblemArguments& arguments, double sparse_threshold);
BackwardResult stats_backward(const Tensor& dstats, const ProblemArguments& arguments,
                              StatsWanted wanted);
Tensor map(const ProblemArguments& arguments, const MapGrid& grid);

// The mathematics behind them (maps.cpp), differentiable by autograd and in the accumulator type.

/// Computes all results of the forward, with the shapes of ForwardResult. o and o2 have Dv columns.
ForwardResult attention_rows(const AttentionArguments& arguments);

/// Computes [B, M, H, kStatCount], packed [total, H, kStatCount].
Tensor stats_rows(const ProblemArguments& arguments, double sparse_threshold);

/// Computes the maps of sequence b in cells: [H, 3, rows, cols].
Tensor map_cells(const ProblemArguments& arguments, int64_t b, const MapGrid& grid);

}  // namespace diffattn::ops::composed
