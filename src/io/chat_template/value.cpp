// SPDX-License-Identifier: Apache-2.0
#include "io/chat_template/value.h"

#include <algorithm>
#include <stdexcept>

#include "io/chat_template/run.h"

namespace diffattn::io::chat {

Value::Value(std::string text) : content_(std::make_shared<const std::string>(std::move(text))) {}

Value::Value(List items) {
  for (const Value& item : items) deepen(item);
  if (depth_ == 0) depth_ = 1;
  content_ = std::make_shared<const List>(std::move(items));
}

Value::Value(Dict members) {
  for (const auto& [key, value] : members) deepen(value);
  if (depth_ == 0) depth_ = 1;
  content_ = std::make_shared<const Dict>(std::move(members));
}

void Value::deepen(const Value& part) {
  if (part.depth() >= kMaxDepth) throw std::length_error("too deep");
  depth_ = std::max<uint8_t>(depth_, static_cast<uint8_t>(part.depth() + 1));
}

bool Value::truth() const {
  if (const bool* value = boolean()) return *value;
  if (const int64_t* value = integer()) return *value != 0;
  if (const double* value = real()) return *value != 0.0;
  if (const std::string* value = text()) return !value->empty();
  if (const List* value = list()) return !value->empty();
  if (const Dict* value = dict()) return !value->empty();
  return !is_undefined() && !is_none();
}

const char* Value::type_name() const {
  static constexpr const char* kNames[] = {
      "an undefined value", "none",   "a boolean", "an integer",  "a float",
      "a string",           "a list", "a mapping", "a namespace", "a macro",
      "a function"};
  static_assert(std::size(kNames) == std::variant_size_v<decltype(content_)>);
  return kNames[content_.index()];
}

const Value* find(const Dict& members, std::string_view key) {
  for (const auto& [name, value] : members) {
    if (name == key) return &value;
  }
  return nullptr;
}

namespace {

bool equal_numbers(const Value& a, const Value& b) {
  const auto whole = [](const Value& value) {
    return value.boolean() != nullptr ? int64_t{*value.boolean()} : *value.integer();
  };
  if (a.real() == nullptr && b.real() == nullptr) return whole(a) == whole(b);
  const auto number = [&](const Value& value) {
    return value.real() != nullptr ? *value.real() : static_cast<double>(whole(value));
  };
  return number(a) == number(b);
}

bool equal_dicts(const Dict& a, const Dict& b, Run& run) {
  if (a.size() != b.size()) return false;
  return std::all_of(a.begin(), a.end(), [&](const auto& member) {
    run.step(1 + b.size() / 8);
    const Value* other = find(b, member.first);
    return other != nullptr && equal(member.second, *other, run);
  });
}

}  // namespace

bool equal(const Value& a, const Value& b, Run& run) {
  run.step();
  if (a.is_number() && b.is_number()) return equal_numbers(a, b);
  if (a.text() != nullptr && b.text() != nullptr) {
    run.read(std::min(a.text()->size(), b.text()->size()));
    return *a.text() == *b.text();
  }
  if (const List* x = a.list(), *y = b.list(); x != nullptr && y != nullptr) {
    return std::equal(x->begin(), x->end(), y->begin(), y->end(),
                      [&](const Value& i, const Value& j) { return equal(i, j, run); });
  }
  if (a.dict() != nullptr && b.dict() != nullptr) return equal_dicts(*a.dict(), *b.dict(), run);
  if (a.is_undefined() || a.is_none()) {
    return a.is_undefined() == b.is_undefined() && a.is_none() == b.is_none();
  }
  return a.space() == b.space() && a.macro() == b.macro() && a.function() == b.function() &&
         (a.space() != nullptr || a.is_callable());
}

}  // namespace diffattn::io::chat
