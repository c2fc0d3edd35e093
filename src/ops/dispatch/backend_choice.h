// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "diffattn/kernels/backend.h"

namespace diffattn::ops {

/// Name of the backend that computes with ATen operators and stores the maps in memory. It supports
/// everything on every device. CUDA tensors that no fused kernel supports use it.
inline constexpr const char* kComposed = "composed";

/// Returns the name that limit_backend() or else DIFFATTN_BACKEND set; empty without a limit.
std::string backend_limit();

/// Returns the kernel backend for a problem in host memory, or null if the limit is "composed".
const Backend* cpu_backend_or_composed(const Problem& problem);

}  // namespace diffattn::ops
