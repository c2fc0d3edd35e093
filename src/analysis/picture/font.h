// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace diffattn::analysis {

/// Seven rows of five pixels, the leftmost in bit 4.
using Glyph = std::array<uint8_t, 7>;

/// ASCII, the Greek lambda, the minus sign and the middle dot; a box for everything else.
const Glyph& glyph_of(char32_t character);

}  // namespace diffattn::analysis
