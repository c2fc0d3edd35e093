// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/glue/entry.h"

namespace diffattn::ops {

/// Ranks, sizes, types, devices and strides of the arguments; throws `Error` naming the argument,
/// what was expected and what came. Reads no data, so it works on meta tensors and symbolic sizes.
void check(const ProblemArguments& arguments);
void check(const AttentionArguments& arguments);

/// The grid lies within M x N and has between one cell and a cell per entry.
void check_grid(const MapGrid& grid, int64_t seq_q, int64_t seq_k);

/// lse1 and lse2 have the shape, type and device of those of the forward.
void check_lse(const Tensor& lse1, const Tensor& lse2, const AttentionArguments& arguments);

/// The tensor has the type, device and shape of the output, `width` (default: as v) in its rows.
void check_output(const char* name, const Tensor& tensor, const AttentionArguments& arguments,
                  std::optional<c10::SymInt> width = {});

}  // namespace diffattn::ops
