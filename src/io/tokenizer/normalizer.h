// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "diffattn/io/json.h"

// PRIVATE header of the io layer.

namespace diffattn::io {

/// What happens to text before anything but non-normalised added tokens sees it.
class Normalizer {
 public:
  Normalizer() = default;
  /// The `normalizer` of a file, null for none. Throws Error for what is not known.
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

/// text with every from, left to right, replaced by to; from must not be empty.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);
/// The literal of a `pattern: {"String": ...}`; Error for a regular expression.
std::string literal_pattern(const JsonValue& section);

}  // namespace diffattn::io
