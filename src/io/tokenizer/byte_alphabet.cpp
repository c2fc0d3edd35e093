// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/byte_alphabet.h"

#include "io/unicode/characters.h"

namespace diffattn::io {
namespace {

struct Alphabet {
  std::array<uint32_t, 256> codes{};
  std::array<std::string, 256> texts;
  std::array<int16_t, 0x144> bytes;  // byte by code point; -1 if the code point stands for none
};

const Alphabet& alphabet() {
  static const Alphabet built = [] {
    Alphabet a;
    a.bytes.fill(-1);
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
      a.codes[byte] = printable ? byte : next++;
      unicode::append_utf8(a.codes[byte], a.texts[byte]);
      a.bytes[a.codes[byte]] = static_cast<int16_t>(byte);
    }
    return a;
  }();
  return built;
}

}  // namespace

std::string_view visible(uint8_t byte) { return alphabet().texts[byte]; }

uint32_t visible_code(uint8_t byte) { return alphabet().codes[byte]; }

std::string to_visible(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += visible(static_cast<uint8_t>(byte));
  return text;
}

std::optional<std::string> from_visible(std::string_view text) {
  const Alphabet& a = alphabet();
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const unicode::Character c = unicode::character_at(text, at);
    if (c.code >= a.bytes.size() || a.bytes[c.code] < 0) return std::nullopt;
    bytes += static_cast<char>(a.bytes[c.code]);
    at += c.size;
  }
  return bytes;
}

}  // namespace diffattn::io
