// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// PRIVATE header of the io layer: how byte-level files write bytes as visible characters. Printable
// Latin-1 stands for itself, the other 68 bytes, in order, for U+0100 and what follows.

namespace diffattn::io {

/// The character for a byte, as UTF-8 of one or two bytes.
std::string_view visible(std::uint8_t byte);
/// The code point for a byte.
std::uint32_t visible_code(std::uint8_t byte);
std::string to_visible(std::string_view bytes);
/// The bytes, or nothing when text holds a character outside the alphabet.
std::optional<std::string> from_visible(std::string_view text);

}  // namespace diffattn::io
