// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "diffattn/io/json.h"

namespace diffattn::models {

inline constexpr int64_t kMaxWidth = 1 << 20;
inline constexpr int64_t kMaxCount = 1 << 16;

/// Reads entries of config.json and collects the keys it knows.
struct ConfigReader {
  io::JsonValue root;
  std::vector<std::string> known;

  std::optional<io::JsonValue> find(const char* key) {
    known.emplace_back(key);
    return root.find(key);
  }
  void read(const char* key, int64_t& target, int64_t min, int64_t max) {
    if (const auto value = find(key)) target = value->to_int(min, max);
  }
  void read(const char* key, double& target, double min, double max) {
    if (const auto value = find(key)) target = value->to_double(min, max);
  }
  void read(const char* key, bool& target) {
    if (const auto value = find(key)) target = value->to_bool();
  }
  /// Reads a token id; null means none. Takes the first id of a list, which Llama-3 has.
  void read(const char* key, std::optional<int64_t>& target, int64_t vocabulary) {
    if (const auto value = find(key)) {
      target = (value->is_array() ? value->at(0) : *value).to_int(0, vocabulary - 1);
    }
  }
};

}  // namespace diffattn::models
