// SPDX-License-Identifier: Apache-2.0
#include "serve/api/token_text.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "io/unicode/utf8.h"

namespace diffattn::serve {
namespace {

bool is_utf8(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const io::unicode::Character c = io::unicode::character_at(text, at);
    if (c.code == io::unicode::Character::kInvalid) return false;
    at += c.size;
  }
  return true;
}

}  // namespace

TokenText token_text(const io::Tokenizer& tokenizer, int64_t id) {
  const std::array<io::TokenId, 1> ids{static_cast<io::TokenId>(id)};
  TokenText text;
  text.bytes = tokenizer.decode_bytes(ids, /*skip_special_tokens=*/false);
  if (!tokenizer.id_to_token(ids[0])) {
    text.name = "<" + std::to_string(id) + ">";
  } else if (is_utf8(text.bytes)) {
    text.name = text.bytes;
  } else {
    text.name = "bytes:";
    for (const char c : text.bytes) {
      std::array<char, 8> hex{};
      std::snprintf(hex.data(), hex.size(), "\\x%02x", static_cast<unsigned char>(c));
      text.name += hex.data();
    }
  }
  return text;
}

size_t character_count(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace diffattn::serve
