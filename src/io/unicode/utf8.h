// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace diffattn::io::unicode {

/// One character of a byte string. A byte that is part of no well-formed character stands for
/// itself: size 1, code kInvalid.
struct Character {
  static constexpr std::uint32_t kInvalid = 0xffffffff;
  std::uint32_t code;
  std::uint32_t size;
};

/// The character at position at, which must be inside text.
Character character_at(std::string_view text, std::size_t at) noexcept;
void append_utf8(std::uint32_t code, std::string& out);

}  // namespace diffattn::io::unicode
