// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace diffattn::analysis {

enum class Effort { kUsual, kBest };

/// Compresses bytes into a zlib stream (RFC 1950).
std::string zlib_stream(std::span<const uint8_t> bytes, Effort effort);

}  // namespace diffattn::analysis
