// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace diffattn::analysis {

/// Seven rows of five pixels; bit 4 is the leftmost pixel.
using Glyph = std::array<uint8_t, 7>;

/// Returns the glyph of an ASCII character, the Greek lambda, the minus sign or the middle dot, and
/// a box for any other character.
const Glyph& glyph_of(char32_t character);

}  // namespace diffattn::analysis
