// SPDX-License-Identifier: Apache-2.0
#include "io/unicode/characters.h"

#include <algorithm>
#include <vector>

#include "io/unicode/unicode_data.h"

namespace diffattn::io::unicode {
namespace {

uint8_t byte_at(std::string_view text, size_t at) { return static_cast<uint8_t>(text[at]); }

/// Properties of a UTF-8 lead byte: the total number of bytes (0 if it is not a lead byte) and the
/// range of the second byte. The range is narrower than 80..BF if the rest would be overlong forms,
/// surrogates or codes beyond U+10FFFF.
struct Lead {
  uint8_t size;
  uint8_t low;
  uint8_t high;
};

constexpr Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2) return {0, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

/// Returns how many bytes from `at` on form the start of a valid character, at most lead.size.
size_t agreeing(std::string_view text, size_t at, const Lead& lead) {
  size_t count = 1;
  while (count < lead.size && at + count < text.size()) {
    const uint8_t byte = byte_at(text, at + count);
    const uint8_t low = count == 1 ? lead.low : 0x80;
    const uint8_t high = count == 1 ? lead.high : 0xbf;
    if (byte < low || byte > high) break;
    ++count;
  }
  return count;
}

}  // namespace

const uint8_t* class_table() {
  static const std::vector<uint8_t> table = [] {
    std::vector<uint8_t> classes(kCodePoints, 0);
    for (const Range& range : kClassRanges) {
      std::fill(classes.begin() + range.first, classes.begin() + range.last + 1, range.value);
    }
    return classes;
  }();
  return table.data();
}

Character character_at(std::string_view text, size_t at) noexcept {
  const uint8_t first = byte_at(text, at);
  if (first < 0x80) return {first, 1};
  const Lead lead = lead_of(first);
  if (lead.size == 0 || agreeing(text, at, lead) < lead.size) return {Character::kInvalid, 1};
  uint32_t code = first & (0x7f >> lead.size);
  for (size_t i = 1; i < lead.size; ++i) code = code << 6 | (byte_at(text, at + i) & 0x3f);
  return {code, lead.size};
}

size_t previous_begin(std::string_view text, size_t end) noexcept {
  for (size_t size = 2; size <= 4 && size <= end; ++size) {
    if (character_at(text, end - size).size == size) return end - size;
  }
  return end - 1;
}

uint8_t class_at(std::string_view text, size_t at) noexcept {
  const Character c = character_at(text, at);
  return c.code == Character::kInvalid ? 0 : class_table()[c.code];
}

void append_utf8(uint32_t code, std::string& out) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  }
}

size_t incomplete_tail(std::string_view text) noexcept {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t at = text.size() - back;
    const Lead lead = lead_of(byte_at(text, at));
    if (lead.size == 1) return 0;
    if (lead.size > back && agreeing(text, at, lead) == back) return back;
  }
  return 0;
}

std::string replace_invalid(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    if (c.code != Character::kInvalid) {
      out.append(text, at, c.size);
      at += c.size;
      continue;
    }
    append_utf8(0xfffd, out);
    const Lead lead = lead_of(byte_at(text, at));
    at += lead.size == 0 ? 1 : agreeing(text, at, lead);
  }
  return out;
}

bool is_valid(std::string_view text) noexcept {
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    if (c.code == Character::kInvalid) return false;
    at += c.size;
  }
  return true;
}

}  // namespace diffattn::io::unicode
