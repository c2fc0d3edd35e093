// SPDX-License-Identifier: Apache-2.0
#include "apps/diffattn/terminal/print.h"

#include <unistd.h>

#include "io/unicode/utf8.h"

namespace diffattn::app {
namespace {

/// True for C0 without line feed and tab, for DEL and for C1.
bool is_control(uint32_t code) {
  return (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0);
}

}  // namespace

std::string terminal_text(std::string_view text) {
  namespace unicode = io::unicode;
  std::string safe;
  for (size_t at = 0; at < text.size();) {
    const unicode::Character character = unicode::character_at(text, at);
    if (character.code == unicode::Character::kInvalid) {
      safe += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
    } else if (is_control(character.code)) {
      safe += fmt::format("\\u{:04x}", character.code);
    } else {
      safe += text.substr(at, character.size);
    }
    at += character.size;
  }
  return safe;
}

void print_drawing(std::string_view drawing) {
  std::fwrite(drawing.data(), 1, drawing.size(), stdout);
}

void write_text(std::FILE* stream, std::string_view text) {
  std::string safe;
  if (isatty(fileno(stream)) == 1) text = safe = terminal_text(text);
  // main() reports failed writes with ferror().
  std::fwrite(text.data(), 1, text.size(), stream);
}

}  // namespace diffattn::app
