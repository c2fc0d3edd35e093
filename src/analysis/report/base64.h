// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace diffattn::analysis {

/// Encodes bytes as base64 (RFC 4648) with padding.
std::string base64(std::span<const uint8_t> bytes);

}  // namespace diffattn::analysis
