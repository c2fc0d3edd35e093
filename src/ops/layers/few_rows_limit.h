// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace diffattn::ops {

/// Up to so many rows a product is bound by reading its matrix, and our own is the faster one.
inline constexpr int64_t kFewRows = 4;

}  // namespace diffattn::ops
