// SPDX-License-Identifier: Apache-2.0
//
// Values as text: str() and repr() of Python, and its json.dumps().

#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "io/chat_template/run.h"
#include "io/chat_template/value.h"
#include "io/unicode/characters.h"

namespace diffattn::io::chat {
namespace {

/// Writes the fewest digits that read back as the same number, in Python's notation: exponents
/// below -4 and from 16 on are written out, and a whole number ends in ".0".
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const double size = std::fabs(value);
  const bool plain = size == 0.0 || (size >= 1e-4 && size < 1e16);
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, format).ptr;
  std::string text(buffer, end);
  if (plain && text.find('.') == text.npos) text += ".0";
  return text;
}

class Writer {
 public:
  explicit Writer(Run& run) : run_(run) {}

  /// Counts the memory of the text in steps, before it can become large.
  void add(std::string_view text) {
    run_.make(text.size());
    out_ += text;
  }

  void repr(const Value& value) {
    run_.step();
    if (value.text() != nullptr) {
      quoted(*value.text());
    } else if (value.list() != nullptr) {
      sequence('[', ']', *value.list(), [&](const Value& item) { repr(item); });
    } else if (value.dict() != nullptr) {
      sequence('{', '}', *value.dict(), [&](const auto& member) {
        quoted(member.first);
        add(": ");
        repr(member.second);
      });
    } else if (value.is_undefined()) {
      add("Undefined");
    } else {
      scalar(value, "None", "True", "False");
    }
  }

  void json(const Value& value, const JsonStyle& style, size_t level) {
    run_.step();
    if (value.text() != nullptr) {
      string_literal(*value.text(), style);
    } else if (value.list() != nullptr) {
      block('[', ']', *value.list(), style.indent, level,
            [&](const Value& item) { json(item, style, level + 1); });
    } else if (value.dict() != nullptr) {
      block('{', '}', *value.dict(), style.indent, level, [&](const auto& member) {
        string_literal(member.first, style);
        add(": ");
        json(member.second, style, level + 1);
      });
    } else {
      scalar(value, "null", "true", "false");
    }
  }

  void scalar(const Value& value, const char* none, const char* yes, const char* no) {
    if (value.is_none()) return add(none);
    if (value.boolean() != nullptr) return add(*value.boolean() ? yes : no);
    if (value.integer() != nullptr) return add(std::to_string(*value.integer()));
    if (value.real() != nullptr) return add(float_text(*value.real()));
    run_.expected("a value that has a text", value);
  }

  std::string take() { return std::move(out_); }

 private:
  template <typename Items, typename Write>
  void sequence(char open, char close, const Items& items, Write&& write) {
    add({&open, 1});
    const char* separator = "";
    for (const auto& item : items) {
      add(separator);
      separator = ", ";
      write(item);
    }
    add({&close, 1});
  }

  /// Like sequence(), but with each item on a line of its own unless indent is negative.
  template <typename Items, typename Write>
  void block(char open, char close, const Items& items, int64_t indent, size_t level,
             Write&& write) {
    if (indent < 0 || items.empty()) return sequence(open, close, items, write);
    const auto line = [&](size_t depth) {
      const size_t spaces = static_cast<size_t>(indent) * depth;
      run_.make(spaces);
      add("\n");
      out_.append(spaces, ' ');
    };
    add({&open, 1});
    const char* separator = "";
    for (const auto& item : items) {
      add(separator);
      separator = ",";
      line(level + 1);
      write(item);
    }
    line(level);
    add({&close, 1});
  }

  /// Writes repr() of a string: in single quotes unless only these occur in it.
  void quoted(const std::string& text) {
    const bool has_single = text.find('\'') != text.npos;
    const char mark = has_single && text.find('"') == text.npos ? '"' : '\'';
    add({&mark, 1});
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '\n') {
        add("\\n");
      } else if (c == '\r') {
        add("\\r");
      } else if (c == '\t') {
        add("\\t");
      } else if (byte < 0x20 || byte == 0x7f) {
        char code[8];
        std::snprintf(code, sizeof code, "\\x%02x", byte);
        add(code);
      } else {
        if (c == mark || c == '\\') add("\\");
        add({&c, 1});
      }
    }
    add({&mark, 1});
  }

  void string_literal(const std::string& text, const JsonStyle& style) {
    run_.read(text.size());
    add(nlohmann::json(unicode::replace_invalid(text)).dump(-1, ' ', style.ensure_ascii));
  }

  Run& run_;
  std::string out_;
};

}  // namespace

std::string text_of(const Value& value, Run& run) {
  if (value.is_undefined()) return "";
  Writer writer(run);
  if (value.text() != nullptr) {
    writer.add(*value.text());
  } else {
    writer.repr(value);
  }
  return writer.take();
}

std::string json_of(const Value& value, const JsonStyle& style, Run& run) {
  Writer writer(run);
  writer.json(value, style, 0);
  return writer.take();
}

}  // namespace diffattn::io::chat
