// SPDX-License-Identifier: Apache-2.0
#include "io/chat_template/access.h"

#include <algorithm>

#include "diffattn/io/error.h"
#include "io/chat_template/strings.h"
#include "io/unicode/utf8.h"

namespace diffattn::io::chat {
namespace {

/// The positions that a slice selects.
struct Positions {
  int64_t first, step, count;
};

Positions positions_of(const Slice& slice, int64_t size, Run& run) {
  const auto bound = [&](const Value& value, int64_t otherwise, int64_t low, int64_t high) {
    if (value.is_undefined() || value.is_none()) return otherwise;
    const int64_t at = integer_of(value, "an integer as bound of a slice", run);
    return std::clamp(at < 0 ? at + size : at, low, high);
  };
  const bool no_step = slice.step.is_undefined() || slice.step.is_none();
  const int64_t step = no_step ? 1 : integer_of(slice.step, "an integer as step of a slice", run);
  if (step == 0 || step > size + 1 || step < -size - 1) {
    if (step == 0) run.fail("expected a step of a slice, got 0");
    return positions_of({slice.first, slice.end, Value(step > 0 ? size + 1 : -size - 1)}, size,
                        run);
  }
  if (step > 0) {
    const int64_t first = bound(slice.first, 0, 0, size), end = bound(slice.end, size, 0, size);
    return {first, step, std::max<int64_t>(0, (end - first + step - 1) / step)};
  }
  const int64_t first = bound(slice.first, size - 1, -1, size - 1);
  const int64_t end = bound(slice.end, -1, -1, size - 1);
  return {first, step, std::max<int64_t>(0, (first - end - step - 1) / -step)};
}

/// Returns a character of a text, or nothing.
std::string_view character(std::string_view text, int64_t index) {
  if (index < 0) index += static_cast<int64_t>(length(text));
  for (size_t at = 0; at < text.size() && index >= 0; --index) {
    const size_t size = unicode::character_at(text, at).size;
    if (index == 0) return text.substr(at, size);
    at += size;
  }
  return {};
}

}  // namespace

int64_t integer_of(const Value& value, const char* what, Run& run) {
  if (value.boolean() != nullptr) return *value.boolean() ? 1 : 0;
  if (value.integer() == nullptr) run.expected(what, value);
  return *value.integer();
}

const std::string& string_of(const Value& value, const char* what, Run& run) {
  if (value.text() == nullptr) run.expected(what, value);
  return *value.text();
}

Value member(const Value& value, std::string_view name, Run& run) {
  if (const Dict* members = value.dict()) {
    run.step(1 + members->size() / 8);
    const Value* found = find(*members, name);
    return found == nullptr ? Value() : *found;
  }
  if (const Namespace* space = value.space()) {
    const auto found = space->find(name);
    return found == space->end() ? Value() : found->second;
  }
  if (value.is_undefined()) run.expected("a value that has " + in_quotes(name), value);
  return Value();
}

Value member_at(const Value& value, std::string_view path, Run& run) {
  run.read(path.size());
  Value at = value;
  while (true) {
    const size_t dot = path.find('.');
    at = member(at, path.substr(0, dot), run);
    if (dot == path.npos) return at;
    path.remove_prefix(dot + 1);
  }
}

Value item(const Value& value, const Value& index, Run& run) {
  if (index.text() != nullptr) return member(value, *index.text(), run);
  if (value.is_undefined()) run.expected("a value that has items", value);
  if (index.integer() == nullptr && index.boolean() == nullptr) return Value();
  int64_t at = integer_of(index, "an integer", run);
  if (const List* items = value.list()) {
    if (at < 0) at += std::ssize(*items);
    return at >= 0 && at < std::ssize(*items) ? (*items)[static_cast<size_t>(at)] : Value();
  }
  if (value.text() == nullptr) return Value();
  run.step(1 + value.text()->size() / 8);
  const std::string_view found = character(*value.text(), at);
  return found.empty() ? Value() : run.text(found);
}

Value slice(const Value& value, const Slice& bounds, Run& run) {
  if (const List* items = value.list()) {
    const Positions at = positions_of(bounds, std::ssize(*items), run);
    List selected;
    run.make(static_cast<size_t>(at.count) * sizeof(Value));
    for (int64_t i = 0; i < at.count; ++i) {
      selected.push_back((*items)[static_cast<size_t>(at.first + i * at.step)]);
    }
    return run.list(std::move(selected));
  }
  const std::string_view text = string_of(value, "a list or a string to slice", run);
  run.make(text.size() * sizeof(size_t));
  std::vector<size_t> begins;
  for (size_t i = 0; i < text.size(); i += unicode::character_at(text, i).size) begins.push_back(i);
  const Positions at = positions_of(bounds, std::ssize(begins), run);
  begins.push_back(text.size());
  std::string selected;
  for (int64_t i = 0; i < at.count; ++i) {
    const auto index = static_cast<size_t>(at.first + i * at.step);
    selected += text.substr(begins[index], begins[index + 1] - begins[index]);
  }
  return run.text(selected);
}

List items_of(const Value& value, Run& run) {
  if (const List* items = value.list()) {
    run.make(items->size() * sizeof(Value));
    return *items;
  }
  List items;
  if (const Dict* members = value.dict()) {
    for (const auto& [key, ignored] : *members) items.push_back(run.text(key));
  } else if (const std::string* text = value.text()) {
    for (size_t at = 0; at < text->size();) {
      const size_t size = unicode::character_at(*text, at).size;
      items.push_back(run.text(std::string_view(*text).substr(at, size)));
      at += size;
    }
  } else if (!value.is_undefined()) {
    run.expected("a list, a mapping or a string", value);
  }
  return items;
}

int64_t length_of(const Value& value, Run& run) {
  if (value.list() != nullptr) return std::ssize(*value.list());
  if (value.dict() != nullptr) return std::ssize(*value.dict());
  if (value.is_undefined()) return 0;
  const std::string& text = string_of(value, "a list, a mapping or a string", run);
  run.step(1 + text.size() / 8);
  return static_cast<int64_t>(length(text));
}

bool contains(const Value& whole, const Value& part, Run& run) {
  if (const std::string* text = whole.text()) {
    run.read(text->size());
    return text->find(string_of(part, "a string to look for in a string", run)) != text->npos;
  }
  if (const Dict* members = whole.dict()) {
    run.step(1 + members->size() / 8);
    return part.text() != nullptr && find(*members, *part.text()) != nullptr;
  }
  if (const List* items = whole.list()) {
    return std::any_of(items->begin(), items->end(),
                       [&](const Value& one) { return equal(one, part, run); });
  }
  if (whole.is_undefined()) return false;
  run.expected("a list, a mapping or a string behind 'in'", whole);
}

}  // namespace diffattn::io::chat
