// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

// PRIVATE header of the io layer.

namespace diffattn::io::unicode {

/// text in normalisation form C of Unicode 16.0. Invalid bytes stay as they are and separate what
/// lies before them from what lies behind.
std::string nfc(std::string_view text);

}  // namespace diffattn::io::unicode
