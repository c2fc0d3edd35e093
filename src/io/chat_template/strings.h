// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

// Functions of Python's str on UTF-8. Letters beyond ASCII have no other case here.

namespace diffattn::io::chat {

enum Side { kLeft = 1, kRight = 2, kBoth = 3 };

/// Removes characters at the ends: those in `characters`, or white space.
std::string_view stripped(std::string_view text, Side sides,
                          std::optional<std::string_view> characters = std::nullopt);

/// Returns the position of the first white space, or the size of the text.
size_t first_space(std::string_view text);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
/// Begins the text, or every word of it, with an upper case letter and writes the rest in lower
/// case.
std::string capitalized(std::string_view text);
std::string titled(std::string_view text);

/// Returns the number of characters. A byte that is not valid UTF-8 counts as one.
size_t length(std::string_view text);

}  // namespace diffattn::io::chat
