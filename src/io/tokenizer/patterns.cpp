// SPDX-License-Identifier: Apache-2.0
#include "io/tokenizer/patterns.h"

#include <cstdint>

#include "io/unicode/characters.h"

namespace diffattn::io {
namespace {

using namespace unicode;

struct Known {
  std::string_view expression;
  Pattern pattern;
};

// We write the first expression of each pattern. The others match the same words, but use the
// possessive quantifiers of later publications.
constexpr Known kKnown[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     Pattern::kGpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", Pattern::kGpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)",
     Pattern::kGpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Pattern::kLlama3},
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
     Pattern::kLlama3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Pattern::kQwen2},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Pattern::kO200k},
};

/// A view of the text with the matching steps that the patterns share. Valid positions are 0 to
/// text.size().
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text), classes_(class_table()) {}

  size_t gpt2(size_t at) const;
  size_t llama3(size_t at, size_t max_digits) const;
  size_t o200k(size_t at) const;

 private:
  struct Seen {
    uint8_t bits;  // CharClass bits; 0 for an invalid byte
    uint8_t size;  // 0 at the end of the text
  };

  Seen see(size_t at) const {
    if (at >= text_.size()) return {0, 0};
    const auto first = static_cast<uint8_t>(text_[at]);
    if (first < 0x80) return {classes_[first], 1};
    const Character c = character_at(text_, at);
    if (c.code == Character::kInvalid) return {0, 1};
    return {classes_[c.code], static_cast<uint8_t>(c.size)};
  }
  bool is(size_t at, char c) const { return at < text_.size() && text_[at] == c; }
  bool is_newline(size_t at) const { return is(at, '\n') || is(at, '\r'); }

  template <typename Accept>
  size_t skip(size_t at, Accept accept) const {
    for (Seen seen = see(at); seen.size > 0 && accept(seen.bits); seen = see(at)) at += seen.size;
    return at;
  }
  size_t skip_letters(size_t at) const {
    return skip(at, [](uint8_t bits) { return (bits & kLetter) != 0; });
  }
  size_t skip_other(size_t at) const {
    return skip(at, [](uint8_t bits) { return (bits & (kLetter | kNumber | kSpace)) == 0; });
  }

  size_t contraction(size_t at, bool any_case) const;
  size_t space(size_t at) const;
  size_t space_or_lines(size_t at) const;
  size_t numbers(size_t at, size_t most) const;
  size_t lower_word(size_t at) const;

  std::string_view text_;
  const uint8_t* classes_;
};

/// Matches 's 't 're 've 'm 'll 'd: returns the end of the match, or `at` if there is none.
size_t Scanner::contraction(size_t at, bool any_case) const {
  if (!is(at, '\'') || at + 1 >= text_.size()) return at;
  const auto letter = [&](size_t i) {
    const char c = i < text_.size() ? text_[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  };
  const char first = letter(at + 1), second = letter(at + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
  if (first == 'l' && second == 'l') return at + 3;
  // U+017F, the long s, equals s if case is ignored.
  if (any_case && text_.substr(at + 1, 2) == "\xc5\xbf") return at + 3;
  return at;
}

/// Matches \s+(?!\S)|\s+ at a space: the whole run, without its last space if text follows it.
size_t Scanner::space(size_t at) const {
  const size_t end = skip(at, [](uint8_t bits) { return (bits & kSpace) != 0; });
  if (end == text_.size()) return end;
  const size_t last = previous_begin(text_, end);
  return last > at ? last : end;
}

/// Matches \s*[\r\n]+|\s+(?!\S)|\s+ at a space: up to the last line break of the run, if any.
size_t Scanner::space_or_lines(size_t at) const {
  size_t after_break = at;
  for (size_t i = at; i < text_.size();) {
    const Seen seen = see(i);
    if ((seen.bits & kSpace) == 0) break;
    i += seen.size;
    if (is_newline(i - 1)) after_break = i;
  }
  return after_break > at ? after_break : space(at);
}

size_t Scanner::numbers(size_t at, size_t most) const {
  for (size_t count = 0; count < most; ++count) {
    const Seen seen = see(at);
    if ((seen.bits & kNumber) == 0) break;
    at += seen.size;
  }
  return at;
}

size_t Scanner::gpt2(size_t at) const {
  if (const size_t end = contraction(at, false); end > at) return end;
  const size_t begin = is(at, ' ') ? at + 1 : at;
  const Seen first = see(begin);
  if (first.size > 0 && (first.bits & kSpace) == 0) {
    if (first.bits & kLetter) return skip_letters(begin);
    if (first.bits & kNumber) return numbers(begin, text_.size());
    return skip_other(begin);
  }
  return space(at);
}

size_t Scanner::llama3(size_t at, size_t max_digits) const {
  if (const size_t end = contraction(at, true); end > at) return end;
  const Seen first = see(at);
  if (first.bits & kLetter) return skip_letters(at);
  if (first.bits & kNumber) return numbers(at, max_digits);
  // Any one character but a line break may stand before a word.
  if (!is_newline(at) && (see(at + first.size).bits & kLetter)) {
    return skip_letters(at + first.size);
  }
  const size_t begin = is(at, ' ') ? at + 1 : at;
  if (size_t end = skip_other(begin); end > begin) {
    while (is_newline(end)) ++end;
    return end;
  }
  return space_or_lines(at);
}

bool is_upper(uint8_t bits) { return (bits & kMark) || ((bits & kLetter) && !(bits & kLower)); }
bool is_lower(uint8_t bits) { return (bits & kMark) || ((bits & kLetter) && !(bits & kUpper)); }

/// Matches [Lu Lt Lm Lo M]*[Ll Lm Lo M]+: returns the end of the match, or `at` if there is none.
size_t Scanner::lower_word(size_t at) const {
  size_t end = at, after_both = at;  // after_both: end of the last character of both classes
  for (Seen seen = see(end); seen.size > 0 && is_upper(seen.bits); seen = see(end)) {
    end += seen.size;
    if (is_lower(seen.bits)) after_both = end;
  }
  const size_t lower_end = skip(end, is_lower);
  return lower_end > end ? lower_end : after_both;
}

size_t Scanner::o200k(size_t at) const {
  const Seen first = see(at);
  if (first.bits & kNumber) return numbers(at, 3);
  // Any one character but a line break may stand before a word.
  const bool lead = (first.bits & kLetter) == 0 && !is_newline(at);
  const size_t behind = at + first.size;
  if (lead) {
    if (const size_t end = lower_word(behind); end > behind) return contraction(end, true);
  }
  if (const size_t end = lower_word(at); end > at) return contraction(end, true);
  // [Lu Lt Lm Lo M]+[Ll Lm Lo M]*: no lower-case part, or lower_word() would have matched.
  const size_t begin = lead ? behind : at;
  if (const size_t end = skip(begin, is_upper); end > begin) return contraction(end, true);
  const size_t symbols = is(at, ' ') ? at + 1 : at;
  if (size_t end = skip_other(symbols); end > symbols) {
    while (is_newline(end) || is(end, '/')) ++end;
    return end;
  }
  return space_or_lines(at);
}

}  // namespace

std::optional<Pattern> find_pattern(std::string_view expression) {
  for (const Known& known : kKnown) {
    if (known.expression == expression) return known.pattern;
  }
  return std::nullopt;
}

std::string_view expression_of(Pattern pattern) {
  for (const Known& known : kKnown) {
    if (known.pattern == pattern) return known.expression;
  }
  return "";
}

size_t match_end(Pattern pattern, std::string_view text, size_t at) {
  const Scanner scanner(text);
  switch (pattern) {
    case Pattern::kGpt2: return scanner.gpt2(at);
    case Pattern::kLlama3: return scanner.llama3(at, 3);
    case Pattern::kQwen2: return scanner.llama3(at, 1);
    case Pattern::kO200k: return scanner.o200k(at);
  }
  return text.size();
}

}  // namespace diffattn::io
