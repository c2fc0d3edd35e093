// SPDX-License-Identifier: Apache-2.0
//
// Methods of strings and mappings.

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "diffattn/io/error.h"
#include "io/chat_template/access.h"
#include "io/chat_template/builtins.h"
#include "io/chat_template/strings.h"

namespace diffattn::io::chat {
namespace {

std::optional<std::string_view> optional_text(const Value& value, Run& run) {
  if (value.is_undefined() || value.is_none()) return std::nullopt;
  return string_of(value, "a string as argument", run);
}

size_t count_of(const Value& value, Run& run) {
  if (value.is_undefined()) return std::numeric_limits<size_t>::max();
  const int64_t count = integer_of(value, "an integer as argument", run);
  return count < 0 ? std::numeric_limits<size_t>::max() : static_cast<size_t>(count);
}

template <Side sides>
Value strip(const std::string& text, const List& given, Run& run) {
  const auto characters = optional_text(given[0], run);
  // Each character that goes is compared with all of them.
  run.step(text.size() / 64 * (characters ? characters->size() : 1));
  return run.text(stripped(text, sides, characters));
}

/// Splits at white space. The rest after `most` splits stays whole.
Value split_at_spaces(std::string_view text, size_t most, Run& run) {
  List parts;
  for (text = stripped(text, kLeft); !text.empty(); text = stripped(text, kLeft)) {
    const size_t end = parts.size() < most ? first_space(text) : text.size();
    parts.push_back(run.text(text.substr(0, end)));
    text.remove_prefix(end);
  }
  return run.list(std::move(parts));
}

Value split(const std::string& text, const List& given, Run& run) {
  run.step(text.size() / 8);
  const auto separator = optional_text(given[0], run);
  const size_t most = count_of(given[1], run);
  if (!separator) return split_at_spaces(text, most, run);
  if (separator->empty()) run.fail("expected a separator for split(), got an empty string");
  List parts;
  std::string_view rest = text;
  while (parts.size() < most) {
    const size_t at = rest.find(*separator);
    if (at == rest.npos) break;
    parts.push_back(run.text(rest.substr(0, at)));
    rest.remove_prefix(at + separator->size());
  }
  parts.push_back(run.text(rest));
  return run.list(std::move(parts));
}

Value rsplit(const std::string& text, const List& given, Run& run) {
  run.step(text.size() / 8);
  const std::string& separator = string_of(given[0], "a separator for rsplit()", run);
  const size_t most = count_of(given[1], run);
  if (separator.empty()) run.fail("expected a separator for rsplit(), got an empty string");
  List parts;
  std::string_view rest = text;
  while (parts.size() < most && rest.size() >= separator.size()) {
    const size_t at = rest.rfind(separator);
    if (at == rest.npos) break;
    parts.push_back(run.text(rest.substr(at + separator.size())));
    rest = rest.substr(0, at);
  }
  parts.push_back(run.text(rest));
  std::reverse(parts.begin(), parts.end());
  return run.list(std::move(parts));
}

/// True if the text begins or ends with the argument, or with one of a list.
template <bool at_begin>
Value has_end(const std::string& text, const List& given, Run& run) {
  const auto fits = [&](const Value& value) {
    const std::string& part = string_of(value, "a string as argument", run);
    run.read(part.size());
    return at_begin ? text.starts_with(part) : text.ends_with(part);
  };
  if (given[0].list() == nullptr) return Value(fits(given[0]));
  return Value(std::any_of(given[0].list()->begin(), given[0].list()->end(), fits));
}

template <bool at_begin>
Value without_end(const std::string& text, const List& given, Run& run) {
  const std::string& part = string_of(given[0], "a string as argument", run);
  std::string_view rest = text;
  if (at_begin && rest.starts_with(part)) rest.remove_prefix(part.size());
  if (!at_begin && rest.ends_with(part)) rest.remove_suffix(part.size());
  return run.text(rest);
}

Value replace(const std::string& text, const List& given, Run& run) {
  return replaced(text, string_of(given[0], "a string as argument", run),
                  string_of(given[1], "a string as argument", run), count_of(given[2], run), run);
}

Value find_text(const std::string& text, const List& given, Run& run) {
  run.step(text.size() / 8);
  const size_t at = text.find(string_of(given[0], "a string as argument", run));
  if (at == text.npos) return Value(int64_t{-1});
  return Value(static_cast<int64_t>(length(std::string_view(text).substr(0, at))));
}

template <std::string (*change)(std::string_view)>
Value changed(const std::string& text, const List&, Run& run) {
  run.make(text.size());
  return run.text(change(text));
}

Value join(const std::string& text, const List& given, Run& run) {
  const List items = items_of(given[0], run);
  for (const Value& item : items) string_of(item, "a list of strings for join()", run);
  return joined_texts(items, text, run);
}

struct StringMethod {
  std::string_view name;
  std::vector<std::string_view> parameters;
  Value (*call)(const std::string& text, const List& given, Run& run);
};

const std::vector<StringMethod>& string_methods() {
  static const std::vector<StringMethod> methods = {
      {"strip", {"chars"}, strip<kBoth>},
      {"lstrip", {"chars"}, strip<kLeft>},
      {"rstrip", {"chars"}, strip<kRight>},
      {"split", {"sep", "maxsplit"}, split},
      {"rsplit", {"sep", "maxsplit"}, rsplit},
      {"startswith", {"prefix"}, has_end<true>},
      {"endswith", {"suffix"}, has_end<false>},
      {"removeprefix", {"prefix"}, without_end<true>},
      {"removesuffix", {"suffix"}, without_end<false>},
      {"replace", {"old", "new", "count"}, replace},
      {"find", {"sub"}, find_text},
      {"join", {"iterable"}, join},
      {"upper", {}, changed<upper>},
      {"lower", {}, changed<lower>},
      {"title", {}, changed<titled>},
      {"capitalize", {}, changed<capitalized>},
  };
  return methods;
}

/// Writes the arguments at {} or {0}.
Value format(std::string_view text, const Arguments& arguments, Run& run) {
  if (!arguments.named.empty()) run.fail("expected format() without keyword arguments, got one");
  std::string out;
  size_t next = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    run.make(1);
    if (c != '{' && c != '}') {
      out += c;
    } else if (text.substr(at + 1).starts_with(c)) {  // doubled
      out += c;
      ++at;
    } else {
      const size_t end = text.find('}', at);
      if (c == '}' || end == text.npos) run.fail("expected pairs of braces for format()");
      const std::string_view field = text.substr(at + 1, end - at - 1);
      size_t index = field.empty() ? next++ : arguments.values.size();
      if (field.size() == 1 && field[0] >= '0' && field[0] <= '9') {
        index = static_cast<size_t>(field[0] - '0');
      }
      if (index >= arguments.values.size()) {
        run.fail("expected a field of format() with an argument, got " + in_quotes(field));
      }
      out += text_of(arguments.values[index], run);
      at = end;
    }
  }
  return run.text(out);
}

Value dict_method(std::string_view name, const Value& value, const Arguments& arguments, Run& run) {
  if (name == "get") {
    const List given = bound(arguments, {"key", "default"}, name, run);
    Value found = given[0].text() == nullptr ? Value() : member(value, *given[0].text(), run);
    if (!found.is_undefined()) return found;
    return given[1].is_undefined() ? Value(None()) : given[1];
  }
  bound(arguments, {}, name, run);
  if (name == "keys") return run.list(items_of(value, run));
  if (name != "items" && name != "values") run.fail("expected a method, got " + in_quotes(name));
  List parts;
  for (const auto& [key, part] : *value.dict()) {
    parts.push_back(name == "values" ? part : run.list({run.text(key), part}));
  }
  return run.list(std::move(parts));
}

}  // namespace

Value replaced(std::string_view text, std::string_view old, std::string_view with, size_t most,
               Run& run) {
  if (old.empty()) run.fail("expected a string to replace, got an empty one");
  run.step(text.size() / 8);
  std::string out;
  size_t at = 0;
  for (size_t count = 0; count < most; ++count) {
    const size_t next = text.find(old, at);
    if (next == text.npos) break;
    run.make(next - at + with.size());
    out.append(text.substr(at, next - at)).append(with);
    at = next + old.size();
  }
  run.make(text.size() - at);
  out.append(text.substr(at));
  return run.text(out);
}

Value joined_texts(const List& items, std::string_view separator, Run& run) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    run.make(separator.size());
    if (i > 0) out += separator;
    out += text_of(items[i], run);
  }
  return run.text(out);
}

Value call_method(std::string_view name, const Value& value, const Arguments& arguments, Run& run) {
  if (value.dict() != nullptr) return dict_method(name, value, arguments, run);
  if (value.text() == nullptr) run.expected("a value with the method " + in_quotes(name), value);
  if (name == "format") return format(*value.text(), arguments, run);
  const auto& methods = string_methods();
  const auto found = std::find_if(methods.begin(), methods.end(),
                                  [&](const StringMethod& one) { return one.name == name; });
  if (found == methods.end()) run.fail("expected a method of strings, got " + in_quotes(name));
  return found->call(*value.text(), bound(arguments, found->parameters, name, run), run);
}

}  // namespace diffattn::io::chat
