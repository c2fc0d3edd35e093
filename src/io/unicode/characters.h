// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "io/unicode/utf8.h"

// UTF-8 and the character classes of Unicode 16.0.

namespace diffattn::io::unicode {

inline constexpr uint32_t kCodePoints = 0x110000;

/// Bits of a character class. Letter and number are the general categories L and N, space is
/// White_Space, word is \w in regular expressions, upper is Lu and Lt, lower is Ll.
enum CharClass : uint8_t {
  kLetter = 1,
  kNumber = 2,
  kSpace = 4,
  kWord = 8,
  kMark = 16,
  kUpper = 32,
  kLower = 64,
};

/// Returns the class bits of all kCodePoints code points; the first call builds the table.
const uint8_t* class_table();

/// Returns the start of the character that ends at `end`, which must be greater than 0.
size_t previous_begin(std::string_view text, size_t end) noexcept;
/// Returns the class bits of the character at position `at`, or 0 for an invalid byte.
uint8_t class_at(std::string_view text, size_t at) noexcept;

/// Returns the length of an incomplete character at the end of text: 0 to 3 bytes.
size_t incomplete_tail(std::string_view text) noexcept;
/// Replaces every maximal ill-formed part of text with U+FFFD.
std::string replace_invalid(std::string_view text);
bool is_valid(std::string_view text) noexcept;

}  // namespace diffattn::io::unicode
