// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "diffattn/io/json.h"

namespace diffattn::io {

/// The first step of encoding: rewrites the text. Only added tokens that are not `normalized` are
/// found before it.
class Normalizer {
 public:
  Normalizer() = default;
  /// Reads the `normalizer` section of a file, which may be null. Throws Error for unknown steps.
  explicit Normalizer(const JsonValue& section);

  bool empty() const { return steps_.empty(); }
  std::string apply(std::string_view text) const;

 private:
  struct Step {
    enum class Kind { kNfc, kReplace, kPrepend } kind;
    std::string from, to;
  };
  void add(const JsonValue& section, int depth);

  std::vector<Step> steps_;
};

/// Replaces every `from` in text with `to`, from left to right. `from` must not be empty.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);
/// Returns the string of a `pattern: {"String": ...}`. Throws Error for a regular expression.
std::string literal_pattern(const JsonValue& section);

}  // namespace diffattn::io
