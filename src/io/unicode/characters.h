// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "io/unicode/utf8.h"

// PRIVATE header of the io layer: UTF-8 and the character classes of Unicode 16.0.

namespace diffattn::io::unicode {

inline constexpr std::uint32_t kCodePoints = 0x110000;

/// Bits of a class. Letter and number are the general categories L and N, space is White_Space,
/// word is what regular expressions call \w, upper is Lu and Lt, lower is Ll.
enum CharClass : std::uint8_t {
  kLetter = 1,
  kNumber = 2,
  kSpace = 4,
  kWord = 8,
  kMark = 16,
  kUpper = 32,
  kLower = 64,
};

/// Classes by code point, kCodePoints of them; built at the first call.
const std::uint8_t* class_table();

/// Where the character that ends before end begins; end must be greater than 0.
std::size_t previous_begin(std::string_view text, std::size_t end) noexcept;
/// Class bits of the character at position at; 0 for an invalid byte.
std::uint8_t class_at(std::string_view text, std::size_t at) noexcept;

/// Bytes at the end of text that begin a character whose other bytes may still come: 0 to 3.
std::size_t incomplete_tail(std::string_view text) noexcept;
/// text with every maximal ill-formed part replaced by U+FFFD.
std::string replace_invalid(std::string_view text);
bool is_valid(std::string_view text) noexcept;

}  // namespace diffattn::io::unicode
