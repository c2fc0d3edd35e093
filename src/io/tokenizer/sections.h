// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "diffattn/io/json.h"

// PRIVATE header of the io layer: what the sections of a tokenizer.json have in common.

namespace diffattn::io {

inline constexpr int kMaxSectionDepth = 4;
inline constexpr std::size_t kMaxSectionSteps = 16;

/// The `type` of a section.
inline std::string section_type(const JsonValue& section) {
  return section.at("type").to_string(64);
}

/// Visits the steps of a Sequence, which nest no deeper than kMaxSectionDepth.
template <typename Visit>
void for_each_section(const JsonValue& sequence, std::string_view key, int depth, Visit&& visit) {
  const JsonValue steps = sequence.at(key);
  if (!steps.is_array()) steps.fail("an array");
  if (depth >= kMaxSectionDepth) steps.fail("sequences nested less deeply");
  if (steps.size() > kMaxSectionSteps) {
    steps.fail("at most " + std::to_string(kMaxSectionSteps) + " steps");
  }
  for (std::size_t i = 0; i < steps.size(); ++i) visit(steps.at(i));
}

/// A boolean member, or what to take where there is none.
inline bool flag(const JsonValue& section, std::string_view key, bool otherwise) {
  const auto value = section.find(key);
  return value ? value->to_bool() : otherwise;
}

}  // namespace diffattn::io
