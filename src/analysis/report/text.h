// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace diffattn::analysis {

/// The document as JSON that may stand inside an HTML script element and inside JavaScript: `<`,
/// `>`, `&`, U+2028 and U+2029 are escaped, bytes that are not UTF-8 become U+FFFD. ASCII only.
std::string json_in_html(const nlohmann::json& document);

/// Text for HTML or XML content and double-quoted attributes. Bytes that are not UTF-8, and the
/// control characters that HTML or XML forbid, become U+FFFD.
std::string markup_text(std::string_view text);

/// The code points of text; U+FFFD for every byte that is not part of valid UTF-8.
std::u32string code_points(std::string_view text);

}  // namespace diffattn::analysis
