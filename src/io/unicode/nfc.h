// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace diffattn::io::unicode {

/// Converts text to normalisation form C of Unicode 16.0. Invalid bytes stay unchanged; characters
/// do not compose across them.
std::string nfc(std::string_view text);

}  // namespace diffattn::io::unicode
