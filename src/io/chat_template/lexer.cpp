// SPDX-License-Identifier: Apache-2.0
#include "io/chat_template/lexer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "diffattn/io/error.h"
#include "io/chat_template/run.h"
#include "io/chat_template/strings.h"
#include "io/unicode/utf8.h"

namespace diffattn::io::chat {
namespace {

constexpr std::array<std::string_view, 24> kOperators = {
    "//", "**", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~",
    "[",  "]",  "(",  ")",  "{",  "}",  "<", ">", "=", ".", ":", "|"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_begin(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_begin(c) || is_digit(c); }

/// Writes every line end as \n and removes one at the end of the template.
std::string with_plain_lines(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    out += text[i] == '\r' ? '\n' : text[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view text, const std::string& file)
      : owned_(with_plain_lines(text)), text_(owned_), file_(file) {}

  std::vector<Token> run() {
    while (true) {
      const size_t open = next_tag();
      if (open == text_.npos) break;
      const char kind = text_[open + 1];
      size_t inside = open + 2;
      char sign = '\0';
      if (inside < text_.size() && (text_[inside] == '-' || text_[inside] == '+')) {
        sign = text_[inside++];
      }
      add_text(text_before(open, sign, kind == '{'));
      move_to(inside);
      if (kind == '#') {
        comment();
      } else {
        tag(kind == '{');
      }
    }
    add_text(text_.substr(at_));
    move_to(text_.size());
    add(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  void add(TokenKind kind, std::string text = {}) {
    tokens_.push_back({.kind = kind, .line = line_, .text = std::move(text)});
  }

  void add_text(std::string_view text) {
    if (!text.empty()) add(TokenKind::kText, std::string(text));
  }

  [[noreturn]] void fail(const std::string& message) const { fail_at(file_, line_, message); }

  void move_to(size_t at) {
    line_ += static_cast<size_t>(
        std::count(text_.begin() + std::ptrdiff_t(at_), text_.begin() + std::ptrdiff_t(at), '\n'));
    at_ = at;
  }

  size_t next_tag() const {
    for (size_t at = at_; (at = text_.find('{', at)) != text_.npos; ++at) {
      if (at + 1 == text_.size()) break;
      const char next = text_[at + 1];
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return text_.npos;
  }

  /// Returns the text up to a tag, without the white space that the tag takes.
  std::string_view text_before(size_t open, char sign, bool output) const {
    const std::string_view text = text_.substr(at_, open - at_);
    if (sign == '-') return stripped(text, kRight);
    if (sign == '+' || output) return text;
    const size_t line = text.rfind('\n') + 1;  // 0 if there is none
    if (line == 0 && !line_begins_) return text;
    return stripped(text.substr(line), kBoth).empty() ? text.substr(0, line) : text;
  }

  /// Goes behind a tag that ends at `end`, and behind the white space that it takes.
  void leave(size_t end, char sign, bool output) {
    const size_t begin = at_;
    if (sign == '-') {
      end += text_.size() - end - stripped(text_.substr(end), kLeft).size();
    } else if (sign != '+' && !output && end < text_.size() && text_[end] == '\n') {
      ++end;
    }
    line_begins_ = end > begin && text_[end - 1] == '\n';
    move_to(end);
  }

  void comment() {
    const size_t close = text_.find("#}", at_);
    if (close == text_.npos) fail("expected '#}' after '{#', got the end of the template");
    const char last = close > at_ ? text_[close - 1] : '\0';
    leave(close + 2, last == '-' || last == '+' ? last : '\0', false);
  }

  void tag(bool output) {
    const size_t first_line = line_;
    const std::string_view close = output ? "}}" : "%}";
    std::string open;  // brackets that are still open
    add(output ? TokenKind::kOutputBegin : TokenKind::kTagBegin);
    while (true) {
      move_to(text_.size() - stripped(text_.substr(at_), kLeft).size());
      if (at_ == text_.size()) {
        line_ = first_line;
        fail("expected " + in_quotes(close) +
             " at the end of the tag, got the end of the template");
      }
      const std::string_view rest = text_.substr(at_);
      const bool sign = rest[0] == '-' || (rest[0] == '+' && !output);
      if (open.empty() && rest.substr(sign ? 1 : 0).starts_with(close)) {
        add(output ? TokenKind::kOutputEnd : TokenKind::kTagEnd);
        return leave(at_ + close.size() + (sign ? 1 : 0), sign ? rest[0] : '\0', output);
      }
      token(rest, open);
    }
  }

  void token(std::string_view rest, std::string& open) {
    const char c = rest[0];
    if (is_name_begin(c)) {
      take(TokenKind::kName,
           std::find_if_not(rest.begin(), rest.end(), is_name_part) - rest.begin());
    } else if (is_digit(c)) {
      number(rest);
    } else if (c == '\'' || c == '"') {
      string(rest);
    } else if (c == ',') {
      take(TokenKind::kOperator, 1);
    } else {
      const auto* const found = std::find_if(kOperators.begin(), kOperators.end(),
                                             [&](auto name) { return rest.starts_with(name); });
      if (found == kOperators.end()) {
        fail("expected an expression, got " + in_quotes(rest.substr(0, 1)));
      }
      balance(c, open);
      take(TokenKind::kOperator, std::ssize(*found));
    }
  }

  void take(TokenKind kind, std::ptrdiff_t size) {
    add(kind, std::string(text_.substr(at_, static_cast<size_t>(size))));
    move_to(at_ + static_cast<size_t>(size));
  }

  /// Keeps `open` up to date: inside of brackets, }} closes two mappings and not the tag.
  void balance(char c, std::string& open) const {
    if (c == '(' || c == '[' || c == '{') open += c;
    if (c != ')' && c != ']' && c != '}') return;
    const char partner = c == ')' ? '(' : c == ']' ? '[' : '{';
    if (!open.ends_with(partner)) fail("expected an expression, got " + in_quotes({&c, 1}));
    open.pop_back();
  }

  void number(std::string_view rest) {
    size_t end = 0;
    const auto digits = [&](size_t from) {
      while (from < rest.size() && is_digit(rest[from])) ++from;
      return from;
    };
    TokenKind kind = TokenKind::kInteger;
    end = digits(0);
    if (end + 1 < rest.size() && rest[end] == '.' && is_digit(rest[end + 1])) {
      end = digits(end + 1);
      kind = TokenKind::kFloat;
    }
    if (end < rest.size() && (rest[end] == 'e' || rest[end] == 'E')) {
      const size_t sign = end + 1 < rest.size() && (rest[end + 1] == '-' || rest[end + 1] == '+');
      const size_t exponent = digits(end + 1 + sign);
      if (exponent > end + 1 + sign) {
        end = exponent;
        kind = TokenKind::kFloat;
      }
    }
    take(kind, static_cast<std::ptrdiff_t>(end));
  }

  void string(std::string_view rest) {
    std::string out;
    size_t i = 1;
    for (; i < rest.size() && rest[i] != rest[0]; ++i) {
      if (rest[i] != '\\') {
        out += rest[i];
      } else if (++i < rest.size()) {
        i += escape(rest.substr(i), out);
      }
    }
    if (i >= rest.size()) fail("expected the end of a string, got the end of the template");
    add(TokenKind::kString, std::move(out));
    move_to(at_ + i + 1);
  }

  /// Appends the character that `rest`, the text behind a backslash, stands for. Returns how many
  /// bytes it has after its first one.
  size_t escape(std::string_view rest, std::string& out) const {
    static constexpr std::string_view kLetters = "ntrbfva\\'\"", kMeanings = "\n\t\r\b\f\v\a\\'\"";
    const char c = rest[0];
    if (const size_t at = kLetters.find(c); at != kLetters.npos) {
      out += kMeanings[at];
      return 0;
    }
    if (c == '\n') return 0;
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      if (is_digit(c)) fail("expected an escape such as \\n or \\x00, got " + in_quotes("\\0"));
      out += '\\';
      out += c;
      return 0;
    }
    uint32_t code = 0;
    for (size_t i = 1; i <= digits; ++i) {
      static constexpr std::string_view kHex = "0123456789abcdef";
      const std::string digit = lower(rest.substr(std::min(i, rest.size()), 1));
      const size_t value = digit.empty() ? kHex.npos : kHex.find(digit);
      if (value == kHex.npos) fail("expected a hexadecimal number after the escape of a string");
      code = code * 16 + static_cast<uint32_t>(value);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      fail("expected a Unicode character after the escape of a string");
    }
    unicode::append_utf8(code, out);
    return digits;
  }

  std::string owned_;
  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0, line_ = 1;
  bool line_begins_ = true;  // the text at at_ begins a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view text, const std::string& file) {
  if (text.size() > kMaxTemplateBytes) {
    throw Error(file, "expected a chat template of at most " + std::to_string(kMaxTemplateBytes) +
                          " bytes, got " + std::to_string(text.size()));
  }
  return Lexer(text, file).run();
}

}  // namespace diffattn::io::chat
