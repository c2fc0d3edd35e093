// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "serve/api/api_error.h"

namespace diffattn::serve {

/// Reads the fields of a JSON object, each with its type and range. A field that is absent or null
/// has its default. All members throw ApiError 400, which names the field.
class Fields {
 public:
  /// `object` must outlive the fields.
  explicit Fields(const nlohmann::json& object, std::string path = "");

  bool flag(const char* name, bool otherwise);
  int64_t integer(const char* name, int64_t low, int64_t high, int64_t otherwise);
  std::optional<int64_t> optional_integer(const char* name, int64_t low, int64_t high);
  double number(const char* name, double low, double high, double otherwise);
  std::string text(const char* name, size_t max_bytes, std::string otherwise);
  /// Returns the value of any type, or nullptr.
  const nlohmann::json* value(const char* name);

  /// Refuses a field that we know but do not support, unless it has a value without effect.
  void unsupported(const char* name, const nlohmann::json& without_effect);
  /// Takes note of a field that changes nothing here.
  void ignore(const char* name) { known_.insert(name); }
  /// Refuses fields that nobody asked for.
  void refuse_others() const;

  /// Throws "<name>: expected <expected>, got <value>".
  [[noreturn]] void fail(std::string_view name, const std::string& expected,
                         const nlohmann::json& got) const;

 private:
  const nlohmann::json& object_;
  std::string path_;  // "" or "messages[0]."
  std::set<std::string, std::less<>> known_;
};

/// Returns a value for a message, shortened: 17, "text", an array of 3 values.
std::string describe(const nlohmann::json& value);

}  // namespace diffattn::serve
