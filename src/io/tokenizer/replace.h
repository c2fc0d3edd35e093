// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "diffattn/io/json.h"

namespace diffattn::io {

/// The place of a step in a file, for messages.
struct StepPlace {
  explicit StepPlace(const JsonValue& section) : file(section.file()), path(section.path()) {}
  std::string file, path;
};

/// Limits how much the steps of a file may lengthen text. Replace steps multiply: four in a row,
/// each of one byte by 1000, turn one byte into 10^12.
///
/// One budget serves all pieces of a text, or all tokens of a vocabulary.
class GrowthBudget {
 public:
  static constexpr size_t kTextFactor = 64;  // for text to encode
  static constexpr size_t kTokenFactor =
      8;  // for tokens of the file, whose tables cost more memory
  static constexpr size_t kAllowance = size_t{64} << 10;  // for short texts with a long prefix

  /// The steps may turn `bytes` bytes into factor * bytes + kAllowance, but never into more than
  /// kMaxTextBytes.
  GrowthBudget(size_t bytes, size_t factor);
  /// Throws Error naming `step` if a text of `bytes` bytes would exceed the budget.
  void check(size_t bytes, const StepPlace& step) const;
  /// Takes a finished text out of the budget.
  void spend(size_t bytes) { spent_ += bytes; }

 private:
  size_t bytes_, most_, spent_ = 0;
};

/// Replaces every `from` in text with `to`, from left to right. `from` must not be empty.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

/// A `Replace` step of a normalizer or decoder.
class Replace {
 public:
  /// Reads the step. Throws Error for a regular expression or an empty pattern.
  explicit Replace(const JsonValue& section);
  /// Makes a step that replaces `from`, which must not be empty. `section` is used for messages.
  Replace(const JsonValue& section, std::string from, std::string to);

  /// Throws Error if the result would exceed the budget. Takes nothing out of it.
  std::string apply(std::string_view text, const GrowthBudget& budget) const;

 private:
  StepPlace place_;
  std::string from_, to_;
};

}  // namespace diffattn::io
