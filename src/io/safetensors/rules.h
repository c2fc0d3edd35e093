// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "diffattn/io/dtype.h"

// Rules that the reader and the writer share.

namespace diffattn::io {

inline constexpr uint64_t kLengthBytes = 8;
inline constexpr std::string_view kMetadataKey = "__metadata__";

/// Returns the error in a tensor name as "expected ..., got ...", or nullopt if it is valid.
std::optional<std::string> name_fault(std::string_view name);

/// The size of a tensor in bytes, or the error in its shape.
struct SizeOrFault {
  uint64_t bytes = 0;
  std::string fault;  // empty when bytes is valid
};
SizeOrFault size_of_tensor(Dtype dtype, std::span<const int64_t> shape);

}  // namespace diffattn::io
