// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "diffattn/io/json.h"
#include "io/tokenizer/replace.h"

namespace diffattn::io {

/// The first step of encoding: rewrites the text. Only added tokens that are not `normalized` are
/// found before it.
class Normalizer {
 public:
  Normalizer() = default;
  /// Reads the `normalizer` section of a file, which may be null. Throws Error for unknown steps.
  explicit Normalizer(const JsonValue& section);

  bool empty() const { return steps_.empty(); }
  /// Throws Error if a step makes the text longer than the budget allows; takes the result out of
  /// it.
  std::string apply(std::string_view text, GrowthBudget& budget) const;

 private:
  struct Nfc {};
  struct Prepend {
    StepPlace place;
    std::string text;
  };
  void add(const JsonValue& step);

  std::vector<std::variant<Nfc, Replace, Prepend>> steps_;
};

}  // namespace diffattn::io
