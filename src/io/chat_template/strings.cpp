// SPDX-License-Identifier: Apache-2.0
#include "io/chat_template/strings.h"

#include "io/unicode/characters.h"

namespace diffattn::io::chat {
namespace {

char upper_of(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
char lower_of(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// Python's white space is Unicode's and the four separators from FS on.
bool is_space(std::string_view text, size_t at) {
  const char c = text[at];
  return (c >= '\x1c' && c <= '\x1f') || (unicode::class_at(text, at) & unicode::kSpace) != 0;
}

bool is_letter(std::string_view text, size_t at) {
  return (unicode::class_at(text, at) & unicode::kLetter) != 0;
}

}  // namespace

std::string_view stripped(std::string_view text, Side sides,
                          std::optional<std::string_view> characters) {
  const auto goes = [&](size_t at, size_t size) {
    if (!characters) return is_space(text, at);
    for (size_t i = 0; i < characters->size();) {
      const size_t other = unicode::character_at(*characters, i).size;
      if (text.substr(at, size) == characters->substr(i, other)) return true;
      i += other;
    }
    return false;
  };
  size_t begin = 0, end = text.size();
  while ((sides & kLeft) != 0 && begin < end) {
    const size_t size = unicode::character_at(text, begin).size;
    if (!goes(begin, size)) break;
    begin += size;
  }
  while ((sides & kRight) != 0 && end > begin) {
    const size_t at = unicode::previous_begin(text, end);
    if (at < begin || !goes(at, end - at)) break;
    end = at;
  }
  return text.substr(begin, end - begin);
}

size_t first_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && !is_space(text, at)) at += unicode::character_at(text, at).size;
  return at;
}

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = upper_of(c);
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = lower_of(c);
  return out;
}

std::string capitalized(std::string_view text) {
  std::string out = lower(text);
  if (!out.empty()) out[0] = upper_of(out[0]);
  return out;
}

std::string titled(std::string_view text) {
  std::string out = lower(text);
  bool inside = false;
  for (size_t at = 0; at < out.size(); at += unicode::character_at(text, at).size) {
    if (!inside) out[at] = upper_of(out[at]);
    inside = is_letter(text, at);
  }
  return out;
}

size_t length(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += unicode::character_at(text, at).size) ++count;
  return count;
}

}  // namespace diffattn::io::chat
