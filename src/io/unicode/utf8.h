// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace diffattn::io::unicode {

/// One character of a byte string. A byte that is not part of a well-formed character has size 1
/// and code kInvalid.
struct Character {
  static constexpr uint32_t kInvalid = 0xffffffff;
  uint32_t code;
  uint32_t size;
};

/// Returns the character at position `at`, which must be inside text.
Character character_at(std::string_view text, size_t at) noexcept;
void append_utf8(uint32_t code, std::string& out);

}  // namespace diffattn::io::unicode
