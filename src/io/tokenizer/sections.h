// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "diffattn/io/json.h"

// Helpers for the sections of a tokenizer.json.

namespace diffattn::io {

inline constexpr int kMaxSectionDepth = 4;
inline constexpr size_t kMaxSectionSteps = 16;

/// Returns the `type` of a section.
inline std::string section_type(const JsonValue& section) {
  return section.at("type").to_string(64);
}

/// Visits the steps of a Sequence. Throws Error if sequences nest deeper than kMaxSectionDepth.
template <typename Visit>
void for_each_section(const JsonValue& sequence, std::string_view key, int depth, Visit&& visit) {
  const JsonValue steps = sequence.at(key);
  if (!steps.is_array()) steps.fail("an array");
  if (depth >= kMaxSectionDepth)
    steps.fail("at most " + std::to_string(kMaxSectionDepth) + " nested sequences");
  if (steps.size() > kMaxSectionSteps) {
    steps.fail("at most " + std::to_string(kMaxSectionSteps) + " steps");
  }
  for (size_t i = 0; i < steps.size(); ++i) visit(steps.at(i));
}

/// Returns a boolean member, or `otherwise` if the key is missing.
inline bool flag(const JsonValue& section, std::string_view key, bool otherwise) {
  const auto value = section.find(key);
  return value ? value->to_bool() : otherwise;
}

}  // namespace diffattn::io
