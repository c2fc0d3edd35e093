// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace diffattn::io::chat {

enum class TokenKind : uint8_t {
  kText,         // template text outside of tags
  kOutputBegin,  // {{
  kOutputEnd,    // }}
  kTagBegin,     // {%
  kTagEnd,       // %}
  kName,
  kString,  // text without quotes and escapes
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  size_t line;
  std::string text{};
};

/// Splits a template into tokens, without comments. White space around tags is as with Jinja's
/// trim_blocks and lstrip_blocks: a tag takes the spaces before it if it begins a line, and the
/// line end behind it; `{%-` and `-%}` take all white space, `{%+` and `+%}` none. Throws Error.
std::vector<Token> tokens_of(std::string_view text, const std::string& file);

}  // namespace diffattn::io::chat
