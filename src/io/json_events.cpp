// SPDX-License-Identifier: Apache-2.0
#include "io/json_events.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "diffattn/io/error.h"

namespace diffattn::io {
namespace {

// SAX callbacks do not get a position, so the lexer reads through an iterator that records it.
class TracedIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TracedIterator(const char* at, const char** seen) : at_(at), seen_(seen) {}
  reference operator*() const { return *at_; }
  TracedIterator& operator++() {
    *seen_ = ++at_;
    return *this;
  }
  TracedIterator operator++(int) {
    TracedIterator old = *this;
    ++*this;
    return old;
  }
  bool operator==(const TracedIterator& other) const { return at_ == other.at_; }
  bool operator!=(const TracedIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** seen_;
};

bool is_number_character(char c) {
  return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

// Shortens nlohmann's message "... syntax error while parsing value - invalid literal; last read:
// 'x'; expected ']'": drops the token, which may be as long as the file.
std::string reason_of(const std::string& what) {
  const size_t from = what.find("while parsing");
  if (from == std::string::npos) return "";
  std::string reason = what.substr(from, what.find("; ", from) - from);
  return " (" + reason.substr(0, 160) + ")";
}

std::string expectation_of(const std::string& what) {
  static constexpr std::string_view kMark = "; expected ";
  const size_t from = what.rfind(kMark);
  if (from == std::string::npos) return "valid JSON";
  std::string clause = in_quotes(std::string_view(what).substr(from + kMark.size()));
  return clause.substr(1, clause.size() - 2);
}

}  // namespace

void JsonEvents::run() {
  // The lexer treats NUL as the end of its input and would ignore everything after it.
  if (const auto nul = text_.find('\0'); nul != std::string_view::npos) {
    fail_at(nul, "expected JSON text, got a NUL byte");
  }
  if (text_.substr(0, 3) == "\xEF\xBB\xBF") {
    fail_at(0, "expected JSON text, got a byte order mark");
  }
  const char* begin = text_.data();
  nlohmann::json::sax_parse(TracedIterator(begin, &seen_),
                            TracedIterator(begin + text_.size(), &seen_), this);
}

size_t JsonEvents::token_begin() const {
  size_t at = static_cast<size_t>(seen_ - text_.data());
  if (at == 0) return 0;
  const char last = text_[at - 1];
  if (last == '{' || last == '[' || last == '}' || last == ']') {
    // After a number, the bracket may be the character that the lexer has looked ahead.
    const bool lookahead = at >= 2 && is_number_character(text_[at - 2]);
    if (!lookahead || last == '{' || last == '[') return at - 1;
  }
  if (last == '"') {
    // Unlike the opening quote, a quote inside a string follows an odd number of backslashes.
    for (at -= 1; at > 0;) {
      --at;
      if (text_[at] != '"') continue;
      size_t slashes = 0;
      while (slashes < at && text_[at - 1 - slashes] == '\\') ++slashes;
      if (slashes % 2 == 0) return at;
    }
    return 0;
  }
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  if (is_letter(last) && last != 'e') {  // null
    while (at > 0 && is_letter(text_[at - 1])) --at;
    return at;
  }
  if (last == 'e' && at >= 4 && is_letter(text_[at - 2])) {  // true, false
    while (at > 0 && is_letter(text_[at - 1])) --at;
    return at;
  }
  if (!is_number_character(last)) --at;  // the lookahead after a number
  while (at > 0 && is_number_character(text_[at - 1])) --at;
  return at;
}

std::string_view JsonEvents::token() const {
  const size_t begin = token_begin();
  std::string_view rest = text_.substr(begin, static_cast<size_t>(seen_ - text_.data()) - begin);
  if (!rest.empty() && is_number_character(rest.front())) {
    size_t length = 0;
    while (length < rest.size() && is_number_character(rest[length])) ++length;
    rest = rest.substr(0, length);
  }
  return rest;
}

void JsonEvents::fail(const std::string& expected, const std::string& got) const {
  fail_at(token_begin(), "expected " + expected + ", got " + got);
}

void JsonEvents::fail_at(size_t position, const std::string& message) const {
  throw Error(file_, base_offset_ + position, message);
}

bool JsonEvents::number_float(double value, const std::string& raw) {
  if (raw.find_first_of(".eE") == std::string::npos) {
    fail("an integer that fits in 64 bits", in_quotes(raw));
  }
  return real(value);
}

bool JsonEvents::binary(binary_t&) { fail("JSON text", "a binary value"); }

bool JsonEvents::parse_error(size_t position, const std::string&,
                             const nlohmann::detail::exception& error) {
  constexpr int kNumberOverflow = 406;
  if (error.id == kNumberOverflow) fail("a number within the range of double", in_quotes(token()));
  // The lexer also counts the character that stopped it, so the error is one position before.
  const size_t at = position == 0 ? 0 : std::min(position - 1, text_.size());
  const std::string got =
      at < text_.size() ? in_quotes(text_.substr(at, 1)) : "the end of the text";
  const std::string what = error.what();
  fail_at(at, "expected " + expectation_of(what) + ", got " + got + reason_of(what));
}

}  // namespace diffattn::io
