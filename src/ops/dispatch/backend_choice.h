// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "diffattn/kernels/backend.h"

namespace diffattn::ops {

/// "composed": ATen operators that materialise the maps. Takes everything on every device; what
/// CUDA tensors get where no fused kernel takes them.
inline constexpr const char* kComposed = "composed";

/// The limit in force: DIFFATTN_BACKEND, or what limit_backend() set since; empty for none.
std::string backend_limit();

/// The kernel backend for a problem in host memory, or null when the limit is "composed".
const Backend* cpu_backend_or_composed(const Problem& problem);

}  // namespace diffattn::ops
