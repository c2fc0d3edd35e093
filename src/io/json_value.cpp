// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "diffattn/io/error.h"
#include "diffattn/io/json.h"

namespace diffattn::io {
namespace {

using nlohmann::json;

std::string shown(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

std::string shown(int64_t value) { return std::to_string(value); }
std::string shown(uint64_t value) { return std::to_string(value); }

template <typename T>
std::string range(T min, T max) {
  return std::string("[").append(shown(min)).append(", ").append(shown(max)).append("]");
}

std::string described(const json& node) {
  switch (node.type()) {
    case json::value_t::null: return "null";
    case json::value_t::boolean: return node.get<bool>() ? "true" : "false";
    case json::value_t::string:
      return "string " + in_quotes(node.get_ref<const std::string&>(), '"');
    case json::value_t::object: return "an object";
    case json::value_t::array: return "an array of length " + std::to_string(node.size());
    case json::value_t::number_float: return "number " + shown(node.get<double>());
    default: return "number " + node.dump();
  }
}

// Keys come from the file, so messages must escape them like any other text in it.
std::string extended(const std::string& path, std::string_view key) {
  const std::string escaped = in_quotes(key);
  const std::string bare = escaped.substr(1, escaped.size() - 2);
  return path.empty() ? bare : path + "." + bare;
}

}  // namespace

JsonValue::JsonValue(const json& root, std::string file) : JsonValue(&root, std::move(file), "") {}

JsonValue JsonValue::at(std::string_view key) const {
  if (!node_->is_object()) fail("an object");
  const auto found = node_->find(std::string(key));
  if (found == node_->end())
    fail_with(extended(path_, key), "expected a value, got none: the key is missing");
  return {&*found, file_, extended(path_, key)};
}

JsonValue JsonValue::at(size_t index) const {
  if (!node_->is_array() || index >= node_->size()) {
    fail("an array with element " + std::to_string(index));
  }
  return {&(*node_)[index], file_, path_ + "[" + std::to_string(index) + "]"};
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  if (!node_->is_object()) fail("an object");
  const auto found = node_->find(std::string(key));
  if (found == node_->end() || found->is_null()) return std::nullopt;
  return JsonValue(&*found, file_, extended(path_, key));
}

std::vector<std::string> JsonValue::keys() const {
  if (!node_->is_object()) fail("an object");
  std::vector<std::string> names;
  names.reserve(node_->size());
  for (const auto& member : node_->get_ref<const json::object_t&>()) names.push_back(member.first);
  return names;
}

size_t JsonValue::size() const {
  if (!node_->is_structured()) fail("an array or object");
  return node_->size();
}

bool JsonValue::is_null() const noexcept { return node_->is_null(); }
bool JsonValue::is_object() const noexcept { return node_->is_object(); }
bool JsonValue::is_array() const noexcept { return node_->is_array(); }
bool JsonValue::is_string() const noexcept { return node_->is_string(); }
bool JsonValue::is_number() const noexcept { return node_->is_number(); }
bool JsonValue::is_bool() const noexcept { return node_->is_boolean(); }

bool JsonValue::to_bool() const {
  if (!node_->is_boolean()) fail("true or false");
  return node_->get<bool>();
}

int64_t JsonValue::to_int(int64_t min, int64_t max) const {
  const bool fits =
      node_->is_number_integer() &&
      (!node_->is_number_unsigned() ||
       node_->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  const int64_t value = fits ? node_->get<int64_t>() : 0;
  if (!fits || value < min || value > max) fail("an integer in " + range(min, max));
  return value;
}

uint64_t JsonValue::to_uint(uint64_t min, uint64_t max) const {
  // The parser stores non-negative integers as unsigned; a document built in code may hold signed
  // ones.
  const bool fits =
      node_->is_number_unsigned() || (node_->is_number_integer() && node_->get<int64_t>() >= 0);
  const uint64_t value = fits ? node_->get<uint64_t>() : 0;
  if (!fits || value < min || value > max) fail("an integer in " + range(min, max));
  return value;
}

double JsonValue::to_double(double min, double max) const {
  const double value = node_->is_number() ? node_->get<double>() : std::nan("");
  // The condition is negated as a whole so that NaN fails it.
  if (!(value >= min && value <= max)) fail("a number in " + range(min, max));
  return value;
}

const std::string& JsonValue::to_string(size_t max_bytes) const {
  if (!node_->is_string()) fail("a string");
  const auto& text = node_->get_ref<const std::string&>();
  if (text.size() > max_bytes) fail("a string of at most " + std::to_string(max_bytes) + " bytes");
  return text;
}

void JsonValue::fail(const std::string& expected) const {
  fail_with(path_, "expected " + expected + ", got " + described(*node_));
}

void JsonValue::fail_with(const std::string& path, const std::string& message) const {
  if (path.empty()) throw Error(file_, message);
  throw Error(file_, "key '" + path + "': " + message);
}

}  // namespace diffattn::io
