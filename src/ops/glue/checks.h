// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "ops/glue/arguments.h"

namespace diffattn::ops {

/// Checks ranks, sizes, types, devices and strides. Throws `Error` naming the argument, what was
/// expected and what came. Reads no data, so it works on meta tensors and symbolic sizes.
void check(const ProblemArguments& arguments);
void check(const AttentionArguments& arguments);

/// Checks that the grid lies within M x N and has between one cell and one cell per entry.
void check_grid(const MapGrid& grid, int64_t seq_q, int64_t seq_k);

/// Checks that lse1 and lse2 have the shape, type and device that the forward gives them.
void check_lse(const Tensor& lse1, const Tensor& lse2, const AttentionArguments& arguments);

/// Checks that the tensor has the type, device and shape of the output, with rows `width` wide
/// (default: the width of v).
void check_output(const char* name, const Tensor& tensor, const AttentionArguments& arguments,
                  std::optional<c10::SymInt> width = {});

}  // namespace diffattn::ops
