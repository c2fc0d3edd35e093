// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/entry.h"

namespace diffattn::ops {

/// Ranks, sizes, types, devices and strides of the arguments; throws `Error` naming the argument,
/// what was expected and what came. Reads no data, so it works on meta tensors and symbolic sizes.
void check(const ProblemArguments& arguments);
void check(const AttentionArguments& arguments);

/// The grid lies within M x N and has between one cell and a cell per entry.
void check_grid(const MapGrid& grid, int64_t seq_q, int64_t seq_k);

/// `dout` has the shape, type and device of the output.
void check_dout(const Tensor& dout, const AttentionArguments& arguments);

}  // namespace diffattn::ops
