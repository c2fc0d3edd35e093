// SPDX-License-Identifier: Apache-2.0
#include "io/settings.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "diffattn/io/error.h"
#include "diffattn/io/file.h"

// This is the only file that includes toml++. For a malformed table header such as "[,]", version
// 3.3 fails an assertion before it reports the error, so we turn its assertions off. NDEBUG must
// not be defined, because it would turn them into assumptions of the compiler.
#undef NDEBUG
#define TOML_ASSERT(expression) static_cast<void>(0)
#define TOML_ENABLE_FORMATTERS 0
#define TOML_MAX_NESTED_VALUES 8  // settings are not nested; the parser recurses
#include <toml++/toml.h>

namespace diffattn::io {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 20;
/// toml++ 3.3 destroys nested tables recursively and does not limit the parts of a dotted key, so a
/// key of 500 000 parts overflows the stack.
constexpr int kMaxDotsPerLine = 256;

/// The parser sees each byte above 0x7f as one private character, U+10FF80 to U+10FFFF. This keeps
/// paths that are not UTF-8, and avoids undefined behaviour of toml++ 3.3 for characters between
/// U+00A1 and U+0499 outside strings.
constexpr std::string_view kHighByte = "\xf4\x8f\xbe";  // with 0x80 to 0xbf: U+10FF80 to U+10FFBF
constexpr std::string_view kHigherByte = "\xf4\x8f\xbf";

std::string encode(std::string_view text) {
  std::string encoded;
  encoded.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) encoded += byte < 0xc0 ? kHighByte : kHigherByte;
    encoded += byte < 0xc0 ? c : static_cast<char>(byte - 0x40);
  }
  return encoded;
}

std::string decode(std::string_view encoded) {
  std::string text;
  for (size_t i = 0; i < encoded.size(); ++i) {
    const std::string_view lead = encoded.substr(i, kHighByte.size());
    const bool high = lead == kHighByte, higher = lead == kHigherByte;
    if ((high || higher) && i + lead.size() < encoded.size()) i += lead.size();
    text += higher ? static_cast<char>(encoded[i] + 0x40) : encoded[i];
  }
  return text;
}

bool is_bare(std::string_view key) {
  const auto is_bare_char = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  return !key.empty() && std::ranges::all_of(key, is_bare_char);
}

/// Returns the reason in a message of toml++, e.g. "expected '=', got '5'", without the name of the
/// grammar rule. Replaces every byte that is not printable ASCII with '?'.
std::string reason_of(const toml::parse_error& error) {
  std::string reason = decode(error.description());
  if (const size_t colon = reason.find(": ");
      colon != std::string::npos && reason.starts_with("Error while parsing ")) {
    reason.erase(0, colon + 2);
  }
  constexpr std::string_view kSaw = ", saw ";
  if (const size_t saw = reason.rfind(kSaw); saw != std::string::npos) {
    reason.replace(saw, kSaw.size(), ", got ");
  }
  std::ranges::replace_if(
      reason, [](char c) { return c < 0x20 || c == 0x7f; }, '?');
  return reason;
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& file) : text_(text), file_(file) {
    line_begins_.push_back(text.starts_with("\xef\xbb\xbf") ? 3 : 0);  // a byte order mark
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') line_begins_.push_back(i + 1);
    }
  }

  std::vector<Setting> run() {
    check_dots();
    try {
      return read();
    } catch (const toml::parse_error& error) {
      fail(error);
    }
  }

 private:
  struct Placed {
    toml::source_position place;
    Setting setting;
  };

  /// Throws Error if a line has too many dots that can separate parts of a key. Dots with a dot
  /// beside them cannot.
  void check_dots() const {
    int dots = 0;
    for (size_t i = 0, line = 1; i < text_.size(); ++i) {
      if (text_[i] == '\n') {
        dots = 0;
        ++line;
      }
      const bool alone = text_[i] == '.' && (i == 0 || text_[i - 1] != '.') &&
                         (i + 1 == text_.size() || text_[i + 1] != '.');
      if (!alone || ++dots <= kMaxDotsPerLine) continue;
      fail_at(i, line, "expected at most " + std::to_string(kMaxDotsPerLine) + " dots, got more");
    }
  }

  std::vector<Setting> read() const {
    std::vector<Placed> placed;
    add(toml::parse(encode(text_.substr(line_begins_.front()))), "", placed);
    std::ranges::sort(
        placed, {}, [](const Placed& one) { return std::pair(one.place.line, one.place.column); });
    std::vector<Setting> settings;
    for (Placed& one : placed) settings.push_back(std::move(one.setting));
    return settings;
  }

  void add(const toml::table& table, const std::string& prefix, std::vector<Placed>& placed) const {
    for (const auto& [key, node] : table) {
      const toml::source_position place = key.source().begin;
      if (!is_bare(key.str())) {
        fail_at(
            offset_of(place), place.line,
            "expected a key of letters, digits, '_' and '-', got " + in_quotes(decode(key.str())));
      }
      const std::string name = prefix + std::string(key.str());
      const toml::table* inner = node.as_table();
      if (inner != nullptr && !inner->is_inline()) {
        add(*inner, name + ".", placed);
      } else {
        placed.push_back({place, setting_of(name, place.line, node)});
      }
    }
  }

  Setting setting_of(const std::string& name, size_t line, const toml::node& node) const {
    if (const auto* text = node.as_string()) return {name, decode(text->get()), true, line};
    std::string written(written_of(node));
    if (const auto* number = node.as_integer()) {
      const bool prefixed = written.find_first_of("xob") != std::string::npos;
      return {name, prefixed ? std::to_string(number->get()) : written, false, line};
    }
    if (node.is_floating_point() || node.is_boolean()) return {name, written, false, line};
    fail_value(name, node.source().begin.line, offset_of(node.source().begin), written);
  }

  /// Returns the text of a value, up to the end of the line it begins in.
  std::string_view written_of(const toml::node& node) const {
    const size_t begin = offset_of(node.source().begin), end = offset_of(node.source().end);
    const std::string_view text = text_.substr(begin, end - begin);
    return text.substr(0, text.find_first_of("\r\n"));
  }

  /// Returns the byte offset of a line and column, both counted from 1.
  size_t offset_of(toml::source_position place) const {
    const size_t line = std::min<size_t>(place.line, line_begins_.size());
    return std::min(line_begins_[line - 1] + place.column - 1, text_.size());
  }

  [[noreturn]] void fail(const toml::parse_error& error) const {
    const toml::source_position place = error.source().begin;
    const size_t at = offset_of(place);
    const size_t equals = text_.find('=', offset_of({place.line, 1}));
    const std::string reason = reason_of(error);
    const std::string key = equals < at ? key_before(equals) : "";
    if (key.empty()) fail_at(at, place.line, reason);

    const size_t begin = std::min(text_.find_first_not_of(" \t", equals + 1), text_.size());
    std::string_view value = text_.substr(begin);
    value = value.substr(0, value.find_first_of("\r\n"));
    if (value.starts_with('"') || value.starts_with('\'')) {
      const bool open = at >= begin + value.size();
      fail_at(at, place.line,
              key + ": " + (open ? "expected a closing quote before the end of the line" : reason));
    }
    if (reason.ends_with("bits")) fail_at(begin, place.line, key + ": " + reason);
    value = value.substr(0, value.find('#'));
    value = value.substr(0, value.find_last_not_of(" \t") + 1);
    if (at > begin + value.size()) fail_at(at, place.line, reason);  // in a comment
    fail_value(key, place.line, begin, value);
  }

  /// Returns the full key in front of the '=' at `equals`, or an empty string if the text up to
  /// there is not valid either.
  std::string key_before(size_t equals) const {
    const std::string start = std::string(text_.substr(0, equals)) + "= 0";
    try {
      const std::vector<Setting> settings = Parser(start, file_).read();
      return settings.empty() ? "" : settings.back().key;
    } catch (const toml::parse_error&) {
      return "";
    } catch (const Error&) {
      return "";
    }
  }

  [[noreturn]] void fail_value(const std::string& key, size_t line, size_t at,
                               std::string_view got) const {
    fail_at(at, line,
            key + ": expected a string in quotes, a number, true or false, got " +
                (got.empty() ? "nothing" : in_quotes(got)));
  }
  [[noreturn]] void fail_at(size_t at, size_t line, const std::string& what) const {
    throw Error(file_, at, "line " + std::to_string(line) + ": " + what);
  }

  std::string_view text_;
  const std::string& file_;
  std::vector<size_t> line_begins_;  // byte offsets
};

}  // namespace

std::vector<Setting> parse_settings(std::string_view text, const std::string& file) {
  return Parser(text, file).run();
}

std::vector<Setting> read_settings(const std::string& path) {
  return parse_settings(read_text(path, kMaxBytes), path);
}

}  // namespace diffattn::io
