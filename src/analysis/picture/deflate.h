// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace diffattn::analysis {

/// A zlib stream (RFC 1950, 1951) of one block with the fixed codes: no tables to build, and flat
/// pictures shrink to a few per cent.
std::string zlib_stream(std::span<const uint8_t> data);

}  // namespace diffattn::analysis
