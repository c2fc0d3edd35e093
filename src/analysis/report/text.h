// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace diffattn::analysis {

/// Returns the document as ASCII JSON that is safe inside an HTML script element and inside
/// JavaScript: escapes `<`, `>`, `&`, U+2028 and U+2029, and replaces invalid UTF-8 with U+FFFD.
std::string json_in_html(const nlohmann::json& document);

/// Escapes text for HTML or XML content and double-quoted attributes. Replaces invalid UTF-8 and
/// the control characters that HTML or XML forbid with U+FFFD.
std::string markup_text(std::string_view text);

/// Returns the code points of text, with U+FFFD for every byte of invalid UTF-8.
std::u32string code_points(std::string_view text);

}  // namespace diffattn::analysis
