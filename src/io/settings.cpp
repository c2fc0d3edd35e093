// SPDX-License-Identifier: Apache-2.0
#include "io/settings.h"

#include <cstdint>
#include <set>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"

namespace diffattn::io {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 20;

bool is_bare(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// A decimal number as TOML writes it: +1_000, -0.5, 3e-4; no leading zeros.
bool is_number(std::string_view word) {
  std::size_t at = 0;
  const auto next = [&] { return at < word.size() ? word[at] : '\0'; };
  const auto sign = [&] { at += next() == '+' || next() == '-' ? 1U : 0U; };
  const auto digits = [&] {  // with single '_' between them
    if (!is_digit(next())) return false;
    while (is_digit(next()) || (next() == '_' && at + 1 < word.size() && is_digit(word[at + 1]))) {
      ++at;
    }
    return true;
  };
  sign();
  const std::size_t first = at;
  if (!digits() || (word[first] == '0' && at - first > 1)) return false;
  if (next() == '.') {
    ++at;
    if (!digits()) return false;
  }
  if (next() == 'e' || next() == 'E') {
    ++at;
    sign();
    if (!digits()) return false;
  }
  return at == word.size();
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  std::vector<Setting> run() {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // a byte order mark, as some editors write it
    while (at_ < text_.size()) {
      skip_blanks();
      if (peek() == '[') {
        table();
      } else if (is_bare(peek())) {
        setting();
      } else if (!at_line_end()) {
        fail("a key, a [table] or a comment");
      }
      end_line();
    }
    return std::move(settings_);
  }

 private:
  void table() {
    ++at_;
    skip_blanks();
    const std::size_t begin = at_;
    table_ = key();
    skip_blanks();
    if (peek() != ']') fail("']'");
    ++at_;
    if (!tables_.insert(table_).second)
      fail_at(begin, "table " + in_quotes(table_) + " a second time");
  }

  void setting() {
    const std::size_t begin = at_, line = line_;
    const std::string name = (table_.empty() ? "" : table_ + ".") + key();
    skip_blanks();
    if (peek() != '=') fail("'='");
    ++at_;
    skip_blanks();
    const bool is_string = peek() == '"' || peek() == '\'';
    std::string value = peek() == '"' ? basic_string()
                        : is_string   ? literal_string()
                                      : bare_value(name);
    if (!keys_.insert(name).second) fail_at(begin, "key " + in_quotes(name) + " a second time");
    settings_.push_back({name, std::move(value), is_string, line});
  }

  std::string key() {
    std::string name;
    for (;;) {
      const std::size_t begin = at_;
      while (is_bare(peek())) ++at_;
      if (at_ == begin) fail("a key of letters, digits, '_' and '-'");
      name += text_.substr(begin, at_ - begin);
      if (peek() != '.') return name;
      name += '.';
      ++at_;
    }
  }

  std::string basic_string() {
    std::string value;
    for (++at_; peek() != '"'; ++at_) {
      if (at_line_break()) fail("'\"' before the end of the line");
      if (peek() != '\\') {
        value += peek();
        continue;
      }
      ++at_;
      switch (peek()) {
        case '"': value += '"'; break;
        case '\\': value += '\\'; break;
        case 'n': value += '\n'; break;
        case 't': value += '\t'; break;
        case 'r': value += '\r'; break;
        default: fail("one of \\\" \\\\ \\n \\t \\r");
      }
    }
    ++at_;
    return value;
  }

  std::string literal_string() {
    const std::size_t begin = ++at_;
    while (peek() != '\'') {
      if (at_line_break()) fail("a closing single quote before the end of the line");
      ++at_;
    }
    return std::string(text_.substr(begin, at_++ - begin));
  }

  std::string bare_value(const std::string& name) {
    const std::string_view rest = text_.substr(at_);
    const std::string_view word = rest.substr(0, rest.find_first_of(" \t\r\n#"));
    if (word != "true" && word != "false" && !is_number(word)) {
      const std::string_view line = rest.substr(0, rest.find_first_of("\r\n#"));
      const std::size_t last = line.find_last_not_of(" \t");
      const std::string got = last == line.npos ? "nothing" : in_quotes(line.substr(0, last + 1));
      fail_at(at_, name + ": expected a string in quotes, a number, true or false, got " + got);
    }
    at_ += word.size();
    return std::string(word);
  }

  void end_line() {
    skip_blanks();
    if (peek() == '#') {
      while (!at_line_break()) ++at_;
    }
    if (at_ < text_.size() && text_[at_] == '\r') ++at_;
    if (at_ == text_.size()) return;
    if (text_[at_] != '\n') fail("the end of the line");
    ++at_;
    ++line_;
  }

  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t') ++at_;
  }
  bool at_line_break() const { return at_ == text_.size() || text_[at_] == '\n'; }
  bool at_line_end() const { return at_line_break() || peek() == '#' || peek() == '\r'; }
  /// The next byte; NUL, which no rule takes, at the end.
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  [[noreturn]] void fail(const std::string& expected) const {
    const std::string got = at_ == text_.size()  ? "the end of the file"
                            : text_[at_] == '\n' ? "the end of the line"
                                                 : in_quotes(text_.substr(at_, 1));
    throw Error(file_, at_,
                "line " + std::to_string(line_) + ": expected " + expected + ", got " + got);
  }
  [[noreturn]] void fail_at(std::size_t offset, const std::string& what) const {
    throw Error(file_, offset, "line " + std::to_string(line_) + ": " + what);
  }

  std::string_view text_;
  const std::string& file_;
  std::size_t at_ = 0, line_ = 1;
  std::string table_;
  std::set<std::string> tables_, keys_;
  std::vector<Setting> settings_;
};

}  // namespace

std::vector<Setting> parse_settings(std::string_view text, const std::string& file) {
  return Parser(text, file).run();
}

std::vector<Setting> read_settings(const std::string& path) {
  return parse_settings(read_text(path, kMaxBytes), path);
}

}  // namespace diffattn::io
