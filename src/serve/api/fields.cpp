// SPDX-License-Identifier: Apache-2.0
#include "serve/api/fields.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "diffattn/io/error.h"

namespace diffattn::serve {

using Json = nlohmann::json;

std::string ApiError::json() const {
  const char* const type = status_ == 401   ? "authentication_error"
                           : status_ == 429 ? "rate_limit_error"
                           : status_ >= 500 ? "server_error"
                                            : "invalid_request_error";
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  const Json object{{"error",
                     {{"message", what()},
                      {"type", type},
                      {"param", or_null(param_)},
                      {"code", or_null(code_)}}}};
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string describe(const Json& value) {
  if (value.is_string()) return io::in_quotes(value.get_ref<const std::string&>(), '"');
  if (value.is_array()) return "an array of " + std::to_string(value.size()) + " values";
  if (value.is_object()) return "an object";
  return value.dump();
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    const std::string name = path_.empty() ? "the body" : path_.substr(0, path_.size() - 1);
    throw ApiError(400, name + ": expected a JSON object, got " + describe(object),
                   path_.empty() ? "" : name);
  }
}

const Json* Fields::value(const char* name) {
  known_.insert(name);
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

void Fields::fail(std::string_view name, const std::string& expected, const Json& got) const {
  const std::string path = path_ + std::string(name);
  throw ApiError(400, path + ": expected " + expected + ", got " + describe(got), path);
}

bool Fields::flag(const char* name, bool otherwise) {
  const Json* const found = value(name);
  if (found == nullptr) return otherwise;
  if (!found->is_boolean()) fail(name, "true or false", *found);
  return found->get<bool>();
}

std::optional<int64_t> Fields::optional_integer(const char* name, int64_t low, int64_t high) {
  const Json* const found = value(name);
  if (found == nullptr) return std::nullopt;
  // An unsigned number beyond int64 would wrap around.
  const bool fits = found->is_number_integer() &&
                    !(found->is_number_unsigned() && found->get<uint64_t>() > INT64_MAX);
  if (!fits || found->get<int64_t>() < low || found->get<int64_t>() > high) {
    fail(name, "an integer from " + std::to_string(low) + " to " + std::to_string(high), *found);
  }
  return found->get<int64_t>();
}

int64_t Fields::integer(const char* name, int64_t low, int64_t high, int64_t otherwise) {
  return optional_integer(name, low, high).value_or(otherwise);
}

double Fields::number(const char* name, double low, double high, double otherwise) {
  const Json* const found = value(name);
  if (found == nullptr) return otherwise;
  if (!found->is_number() || !(found->get<double>() >= low && found->get<double>() <= high)) {
    fail(name, "a number from " + Json(low).dump() + " to " + Json(high).dump(), *found);
  }
  return found->get<double>();
}

std::string Fields::text(const char* name, size_t max_bytes, std::string otherwise) {
  const Json* const found = value(name);
  if (found == nullptr) return otherwise;
  if (!found->is_string() || found->get_ref<const std::string&>().size() > max_bytes) {
    fail(name, "a string of at most " + std::to_string(max_bytes) + " bytes", *found);
  }
  return found->get<std::string>();
}

void Fields::unsupported(const char* name, const Json& without_effect) {
  const Json* const found = value(name);
  if (found == nullptr || *found == without_effect) return;
  const std::string path = path_ + name;
  throw ApiError(400, path + " is not supported by this server", path);
}

void Fields::refuse_others() const {
  for (const auto& item : object_.items()) {
    if (known_.contains(item.key())) continue;
    const std::string path = path_ + item.key();
    throw ApiError(400, "Unrecognized request argument supplied: " + io::in_quotes(path), path);
  }
}

}  // namespace diffattn::serve
