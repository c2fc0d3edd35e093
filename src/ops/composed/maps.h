// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/glue/entry.h"

/// The maths of `composed`, differentiable by autograd.
namespace diffattn::ops::composed {

/// Everything forward can be asked for, in the accumulator type, laid out as ForwardResult.
struct Rows {
  Tensor out, lse1, lse2, o, o2;
};

Rows attention_rows(const AttentionArguments& arguments);

/// [B, M, H, kStatCount], packed [total, H, kStatCount].
Tensor stats_rows(const ProblemArguments& arguments, double sparse_threshold);

/// The maps of sequence b in cells: [H, 3, rows, cols].
Tensor map_cells(const ProblemArguments& arguments, int64_t b, const MapGrid& grid);

}  // namespace diffattn::ops::composed
