// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The byte alphabet: byte-level files write bytes as visible characters. Printable Latin-1
// characters stand for themselves; the other 68 bytes are U+0100, U+0101, ... in order.

namespace diffattn::io {

/// Returns the character for a byte as UTF-8 of one or two bytes.
std::string_view visible(uint8_t byte);
/// Returns the code point for a byte.
uint32_t visible_code(uint8_t byte);
std::string to_visible(std::string_view bytes);
/// Returns the bytes, or nullopt if text has a character outside the alphabet.
std::optional<std::string> from_visible(std::string_view text);

}  // namespace diffattn::io
