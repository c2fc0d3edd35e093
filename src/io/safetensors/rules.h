// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "diffattn/io/dtype.h"

// PRIVATE header: what reader and writer agree on.

namespace diffattn::io {

inline constexpr std::uint64_t kLengthBytes = 8;
inline constexpr std::string_view kMetadataKey = "__metadata__";

/// What is wrong with a tensor name, as "expected ..., got ..."; nothing when it is fine.
std::optional<std::string> name_fault(std::string_view name);

/// Size of a tensor in bytes, or what is wrong with its shape.
struct SizeOrFault {
  std::uint64_t bytes = 0;
  std::string fault;  // empty when bytes is valid
};
SizeOrFault size_of_tensor(Dtype dtype, std::span<const std::int64_t> shape);

}  // namespace diffattn::io
