// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "diffattn/io/json.h"

// Helpers for the sections of a tokenizer.json.

namespace diffattn::io {

inline constexpr int kMaxSectionDepth = 4;
inline constexpr size_t kMaxSectionSteps = 16;

/// Returns the `type` of a section or of one of its steps.
inline std::string section_type(const JsonValue& section) {
  return section.at("type").to_string(64);
}

/// Visits the steps of a section in order, through nested Sequences, whose lists have the key
/// `list`. Throws Error if a Sequence nests deeper than kMaxSectionDepth, or if the section has
/// more than kMaxSectionSteps steps and Sequences in all.
template <typename Visit>
class SectionSteps {
 public:
  SectionSteps(std::string_view list, Visit visit) : list_(list), visit_(std::move(visit)) {}

  void run(const JsonValue& section, int depth = 0) {
    if (section_type(section) != "Sequence") {
      visit_(section);
      return;
    }
    const JsonValue steps = section.at(list_);
    if (!steps.is_array()) steps.fail("an array");
    if (depth >= kMaxSectionDepth) {
      steps.fail("at most " + std::to_string(kMaxSectionDepth) + " nested sequences");
    }
    count_ += steps.size();
    if (count_ > kMaxSectionSteps) {
      steps.fail("at most " + std::to_string(kMaxSectionSteps) + " steps in the whole section");
    }
    for (size_t i = 0; i < steps.size(); ++i) run(steps.at(i), depth + 1);
  }

 private:
  std::string_view list_;
  Visit visit_;
  size_t count_ = 0;
};

template <typename Visit>
void for_each_step(const JsonValue& section, std::string_view list, Visit&& visit) {
  if (!section.is_null()) SectionSteps(list, std::forward<Visit>(visit)).run(section);
}

/// Returns a boolean member, or `otherwise` if the key is missing.
inline bool flag(const JsonValue& section, std::string_view key, bool otherwise) {
  const auto value = section.find(key);
  return value ? value->to_bool() : otherwise;
}

}  // namespace diffattn::io
