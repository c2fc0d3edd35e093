// SPDX-License-Identifier: Apache-2.0
#include "analysis/report/text.h"

#include <nlohmann/json.hpp>

namespace diffattn::analysis {
namespace {

constexpr char32_t kReplacement = 0xfffd;

// Length of the valid UTF-8 sequence at the front of text and its code point; 0 when there is none.
std::size_t decode(std::string_view text, char32_t& code_point) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    code_point = lead;
    return 1;
  }
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  char32_t value = lead & (0x7f >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    value = value << 6 | (byte(i) & 0x3f);
  }
  const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  if (overlong || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) return 0;
  code_point = value;
  return length;
}

bool forbidden_in_markup(char32_t c) {
  const bool control = (c < 0x20 && c != '\t' && c != '\n') || (c >= 0x7f && c < 0xa0);
  return control || (c & 0xfffe) == 0xfffe || (c >= 0xfdd0 && c <= 0xfdef);
}

}  // namespace

std::u32string code_points(std::string_view text) {
  std::u32string out;
  while (!text.empty()) {
    char32_t code_point = kReplacement;
    const std::size_t length = decode(text, code_point);
    out += length == 0 ? kReplacement : code_point;
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6);
    put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3f));
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  }
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
      default: append_utf8(out, forbidden_in_markup(c) ? kReplacement : c);
    }
  }
  return out;
}

}  // namespace diffattn::analysis
