// SPDX-License-Identifier: Apache-2.0
#include "analysis/report/text.h"

#include <nlohmann/json.hpp>

#include "io/unicode/utf8.h"

namespace diffattn::analysis {
namespace {

constexpr char32_t kReplacement = 0xfffd;

bool forbidden_in_markup(char32_t c) {
  const bool control = (c < 0x20 && c != '\t' && c != '\n') || (c >= 0x7f && c < 0xa0);
  return control || (c & 0xfffe) == 0xfffe || (c >= 0xfdd0 && c <= 0xfdef);
}

}  // namespace

std::u32string code_points(std::string_view text) {
  using io::unicode::Character;
  std::u32string out;
  for (size_t at = 0; at < text.size();) {
    const Character character = io::unicode::character_at(text, at);
    out += character.code == Character::kInvalid ? kReplacement : char32_t{character.code};
    at += character.size;
  }
  return out;
}

std::string json_in_html(const nlohmann::json& document) {
  // With ensure_ascii, U+2028 and U+2029 are escaped by the library; < > & can only stand inside
  // strings, where \u003c means the same.
  const std::string plain = document.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  std::string out;
  out.reserve(plain.size());
  for (const char c : plain) {
    switch (c) {
      case '<': out += "\\u003c"; break;
      case '>': out += "\\u003e"; break;
      case '&': out += "\\u0026"; break;
      default: out += c;
    }
  }
  return out;
}

std::string markup_text(std::string_view text) {
  std::string out;
  for (const char32_t c : code_points(text)) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: io::unicode::append_utf8(forbidden_in_markup(c) ? kReplacement : c, out);
    }
  }
  return out;
}

}  // namespace diffattn::analysis
